//! A whole job in this process: scheduler, servers and workers are threads that meet in memory.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use kv::config::{Role, Settings, process_env};
use kv::{Error, KvStore, node};
use kv_core::cluster::NodeId;

use super::args::Args;
use super::worker::{self, Job};

/// What a node has come to.
type End = Result<(), Error>;

/// Trains to the end.
///
/// # Errors
/// The first failure of a node. The others may still run; they end with the process.
pub(super) fn run(args: &Args, job: Job) -> Result<(), Error> {
    let (workers, servers) = (args.workers(), args.servers());
    // Without randomness the process id is as good: the name is for this process only.
    let name = NodeId::random().map_or_else(|_| std::process::id().to_string(), |id| id.to_string());
    let own = Settings {
        by_rank: Some(false),
        job: Some(format!("train-{name}")),
        num_workers: Some(workers),
        num_servers: Some(servers),
        ..args.settings()?
    };
    let of = |role, rank| Settings { role: Some(role), rank: Some(rank), ..own.clone() };

    let (ended, ends) = sync_channel::<End>(usize::from(workers) + usize::from(servers) + 1);
    let (listening, listens) = sync_channel(1);
    let scheduler = Settings::load(of(Role::Scheduler, 0), None, &process_env).resolve(Role::Scheduler)?;
    spawn("scheduler".to_owned(), ended.clone(), move |ended| {
        let run = node::run_scheduler(&scheduler, |_| listening.send(()).unwrap_or_default());
        ended(node::runtime().and_then(|runtime| runtime.block_on(run)));
    })?;
    // An error means that it has failed, which the end of it tells.
    let _ = listens.recv();
    for rank in 0..servers {
        let server = Settings::load(of(Role::Server, rank), None, &process_env).resolve(Role::Server)?;
        spawn(format!("server-{rank}"), ended.clone(), move |ended| {
            let run = node::run_server(&server, node::updaters(), |_| {});
            ended(node::runtime().and_then(|runtime| runtime.block_on(run)));
        })?;
    }
    let (job, kind) = (Arc::new(job), args.mode.store());
    for rank in 0..workers {
        let (job, settings) = (Arc::clone(&job), of(Role::Worker, rank));
        spawn(format!("worker-{rank}"), ended.clone(), move |ended| {
            match KvStore::builder(kind).settings(settings).connect() {
                // The others hear of a failure when the store is dropped: not before it is told as the first one.
                Ok(store) => ended(worker::run(&job, &store)),
                Err(error) => ended(Err(error)),
            }
        })?;
    }
    drop(ended);
    for _ in 0..usize::from(workers) + usize::from(servers) + 1 {
        ends.recv().unwrap_or_else(|_| Err(Error::Config("a thread of the job has panicked".to_owned())))?;
    }
    Ok(())
}

/// Starts a node on a thread of its own.
fn spawn(name: String, ended: SyncSender<End>, node: impl FnOnce(&dyn Fn(End)) + Send + 'static) -> Result<(), Error> {
    // Nobody listens any more when another node has failed.
    let run = move || node(&|end| drop(ended.send(end)));
    let spawned = std::thread::Builder::new().name(name).spawn(run);
    spawned.map(drop).map_err(|error| Error::Config(format!("cannot start a thread: {error}")))
}
