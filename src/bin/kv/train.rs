//! `kv train`: distributed training of small models from files; the main job and the model for one's own.
//!
//! ```text
//!  kv train            launches: scheduler, servers, and itself again as every worker
//!    worker w          for each step: gradient of its slice of the batch, push, pull
//!  kv train --local    the same rounds in one process: the serial reference
//! ```
//!
//! - [`args`]: the flags
//! - [`dataset`], [`parse`]: examples from CSV and libsvm files
//! - [`model`]: parameters, gradients, evaluation
//! - [`batches`]: which worker computes which examples
//! - [`worker`]: the loop over a store
//! - [`report`]: progress for people and programs
//! - [`save`]: weights in a file

mod args;
mod batches;
mod dataset;
mod model;
mod parse;
mod report;
mod save;
mod worker;

use std::io::IsTerminal;
use std::process::ExitCode;

use kv::config::{Role, Settings, process_env};
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
    // Bad files are found before anything is started.
    let job = Job::prepare(args)?;
    if args.local {
        start_logging("warn")?;
        let store = KvStore::create("local")?;
        worker::run(&job, &store)?;
        return Ok(ExitCode::SUCCESS);
    }
    let environment = Settings::load(Settings::default(), None, &process_env);
    match environment.role {
        Some(Role::Worker) => {
            start_logging(environment.log.as_deref().unwrap_or("warn"))?;
            let settings = Settings { transport: args.transport.map(str::to_owned), ..Settings::default() };
            let kind = args.mode.store();
            let store = KvStore::builder(kind).settings(settings).deterministic(args.deterministic).connect()?;
            worker::run(&job, &store)?;
            Ok(ExitCode::SUCCESS)
        }
        // Launchers that start one command in every role.
        Some(Role::Scheduler | Role::Server) => node::serve_if_asked().map(|_| ExitCode::SUCCESS),
        Some(Role::Observer) | None => launch_job(args),
    }
}

/// Starts scheduler, servers and workers on this machine; every worker is this program with the same arguments.
fn launch_job(args: &Args) -> Result<ExitCode, Error> {
    let kv = launch::this_program()?;
    let worker = Program { program: kv.clone(), args: std::env::args_os().skip(1).collect() };
    let mut plan = LaunchPlan::new(args.workers, args.servers, &kv, worker);
    plan.transport = launch::transport_of_processes(args.transport)?;
    plan.stdout = Stdout::Worker0;
    // The progress bar needs the terminal itself.
    plan.worker_0_on_terminal = std::io::stderr().is_terminal() && !args.json;
    Ok(ExitCode::from(launch::run(plan)))
}
