//! `kv train`: distributed training of small models from files; the main job and the model for one's own.
//!
//! ```text
//!  kv train            launches: scheduler, servers, and itself again as every worker
//!    worker w          for each step: gradient of its slice of the batch, push, pull
//!  kv train --transport memory   the same nodes, as threads of this process
//!  kv train --by-rank  under mpirun or srun: the node of this rank
//!  kv train --local    the same rounds in one process: the serial reference
//! ```
//!
//! - [`args`]: the flags
//! - [`dataset`], [`parse`]: examples from CSV and libsvm files
//! - [`model`]: parameters, gradients, evaluation
//! - [`batches`]: which worker computes which examples
//! - [`worker`]: the loop over a store
//! - [`threads`]: a whole job in this process
//! - [`report`]: progress for people and programs
//! - [`save`]: weights in a file

mod args;
mod batches;
mod dataset;
mod model;
mod parse;
mod report;
mod save;
mod threads;
mod worker;

use std::io::IsTerminal;
use std::process::ExitCode;

use kv::config::{Role, Settings, process_env};
use kv::transport::{self, Addressing};
use kv::{Error, KvStore, node};

pub(crate) use args::Args;

use crate::fail;
use crate::launch::{self, LaunchPlan, Program, Stdout};
use crate::node_args::start_logging;
use worker::Job;

/// The subcommand.
pub(crate) fn main(args: Args) -> ExitCode {
    match run(&args) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

fn run(args: &Args) -> Result<ExitCode, Error> {
    if args.local {
        let job = Job::prepare(args)?;
        start_logging("warn")?;
        worker::run(&job, &KvStore::create("local")?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let flags = args.settings()?;
    let settings = Settings::load(flags.clone(), None, &process_env);
    let log = settings.log.as_deref().unwrap_or("warn");
    match settings.role {
        Some(Role::Worker) => {
            let job = Job::prepare(args)?;
            start_logging(log)?;
            worker::run(&job, &KvStore::builder(args.mode.store()).settings(flags).connect()?)?;
        }
        // Launchers that start one command in every role. These two need no examples.
        Some(Role::Scheduler | Role::Server) => {
            start_logging(log)?;
            node::serve_if_asked_with(flags)?;
        }
        Some(Role::Observer) | None => return start_job(args, &settings),
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a whole job here.
fn start_job(args: &Args, settings: &Settings) -> Result<ExitCode, Error> {
    if args.names_a_scheduler() {
        return Err(Error::Config(
            "--scheduler: expected --role or --by-rank beside it, which make this one node of a job that others start, \
             found neither; a job that is started here has a scheduler of its own"
                .to_owned(),
        ));
    }
    // Bad files are found before anything is started.
    let job = Job::prepare(args)?;
    if settings.transport.as_deref().map(transport::addressing) == Some(Addressing::Job) {
        start_logging(settings.log.as_deref().unwrap_or("warn"))?;
        threads::run(args, job)?;
        return Ok(ExitCode::SUCCESS);
    }
    launch_job(args)
}

/// Starts scheduler, servers and workers on this machine; every worker is this program with the same arguments.
fn launch_job(args: &Args) -> Result<ExitCode, Error> {
    let kv = launch::this_program()?;
    let worker = Program { program: kv.clone(), args: std::env::args_os().skip(1).collect() };
    let mut plan = LaunchPlan::new(args.workers(), args.servers(), &kv, worker);
    plan.transport = launch::transport_of_processes(args.transport)?;
    plan.stdout = Stdout::Worker0;
    // The progress bar needs the terminal itself.
    plan.worker_0_on_terminal = std::io::stderr().is_terminal() && !args.json;
    Ok(ExitCode::from(launch::run(plan)))
}
