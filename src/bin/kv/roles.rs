//! `kv scheduler` and `kv server`.

use std::io::Write;
use std::process::ExitCode;

use kv::config::Role;
use kv::{Error, node};
use tokio::signal::unix::{SignalKind, signal};

use crate::fail;
use crate::node_args::{JobArgs, NodeArgs};

/// Run the scheduler of a job: it keeps the roster, counts barriers and watches heartbeats.
///
/// Its first line of output says where it listens. It ends when the job does: with 0 when all workers have left, with 1
/// and a message when the job failed.
#[derive(clap::Args, Debug)]
pub(crate) struct SchedulerArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    node: NodeArgs,
}

/// Run a server of a job: it owns a share of the values and updates them.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    node: NodeArgs,
}

pub(crate) fn scheduler(args: SchedulerArgs) -> ExitCode {
    let config = match args.node.resolve(args.job, Role::Scheduler) {
        Ok(config) => config,
        Err(error) => return fail(&error),
    };
    until_signalled(node::run_scheduler(&config, |endpoint| {
        // Whoever started this may have closed the pipe; that is no reason not to run.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "listening on {endpoint}").and_then(|()| out.flush());
    }))
}

pub(crate) fn server(args: ServerArgs) -> ExitCode {
    let config = match args.node.resolve(JobArgs::default(), Role::Server) {
        Ok(config) => config,
        Err(error) => return fail(&error),
    };
    until_signalled(node::run_server(&config, node::updaters(), |place| {
        tracing::info!("server {} of {}, serving {} workers", place.rank, place.servers, place.workers);
    }))
}

/// Runs a role until its job is over, or until this process is told to end.
fn until_signalled(role: impl Future<Output = Result<(), Error>>) -> ExitCode {
    let runtime = match node::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    runtime.block_on(async {
        let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) else {
            return fail(&Error::Config("cannot listen for signals".to_owned()));
        };
        tokio::select! {
            result = role => match result {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error),
            },
            _ = interrupt.recv() => ExitCode::from(130),
            _ = terminate.recv() => ExitCode::from(143),
        }
    })
}
