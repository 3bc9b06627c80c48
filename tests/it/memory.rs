//! Whole jobs in this process, over memory: no sockets, only the name of the job.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use kv::config::{Role, Settings};
use kv::{Error, KvStore, node};

use crate::cluster::{Task, block_on, settings, start};

fn job(name: &str) -> Settings {
    Settings {
        transport: Some("memory".to_owned()),
        job: Some(name.to_owned()),
        num_workers: Some(2),
        num_servers: Some(2),
        ..settings()
    }
}

fn scheduler(job: &Settings) -> Task<Result<(), Error>> {
    let (say, listening) = sync_channel(1);
    let config = job.clone().resolve(Role::Scheduler).unwrap();
    let task = start(move || block_on(node::run_scheduler(&config, |endpoint| say.send(endpoint.clone()).unwrap())));
    let endpoint = listening.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(endpoint.0, format!("mem://{}", job.job.as_ref().unwrap()));
    task
}

fn server(job: &Settings) -> Task<Result<(), Error>> {
    let config = job.clone().resolve(Role::Server).unwrap();
    start(move || block_on(node::run_server(&config, node::updaters(), |_| {})))
}

fn worker(job: &Settings, rank: u16) -> Task<Result<(), Error>> {
    let settings = Settings { rank: Some(rank), ..job.clone() };
    start(move || {
        let store = KvStore::builder("dist_sync").settings(settings).connect()?;
        // Many chunks, on both servers.
        store.init("k", &[0.0_f32; 100])?;
        for round in 1..=3 {
            let sum = store.push_pull("k", &[f32::from(rank) + f32::from(round as u8); 100])?.wait()?;
            assert_eq!(sum.as_slice::<f32>()?, [1.0 + 2.0 * f32::from(round as u8); 100]);
        }
        store.barrier()?;
        store.close()
    })
}

fn nodes(job: &Settings) -> Vec<Task<Result<(), Error>>> {
    vec![server(job), worker(job, 0), server(job), worker(job, 1)]
}

#[test]
fn a_job_runs_in_memory_and_its_name_is_free_afterwards() {
    for _ in 0..2 {
        let job = job("again");
        // Nodes may come before their scheduler.
        let early = worker(&job, 0);
        let scheduler = scheduler(&job);
        let others = [server(&job), server(&job), worker(&job, 1)];
        for node in others.into_iter().chain([early, scheduler]) {
            node.join().unwrap();
        }
    }
}

#[test]
fn jobs_of_different_names_do_not_see_each_other() {
    let jobs = ["one", "two"].map(job);
    let schedulers = [scheduler(&jobs[0]), scheduler(&jobs[1])];
    let status = |job: &Settings| block_on(node::status(&job.clone().resolve(Role::Observer).unwrap())).unwrap();
    let first: Vec<_> = nodes(&jobs[0]);
    first.into_iter().for_each(|node| node.join().unwrap());
    assert_eq!(status(&jobs[1]).waiting.workers, (0, 2));
    nodes(&jobs[1]).into_iter().chain(schedulers).for_each(|node| node.join().unwrap());
}

#[test]
fn a_second_job_of_the_same_name_is_told_so() {
    let job = job("taken");
    let scheduler = scheduler(&job);
    let second = job.clone().resolve(Role::Scheduler).unwrap();
    let text = block_on(node::run_scheduler(&second, |_| unreachable!("it cannot listen"))).unwrap_err().to_string();
    assert!(
        text.contains("job (--job, KV_JOB): expected a name that no other job") && text.contains("taken"),
        "{text}"
    );
    nodes(&job).into_iter().chain([scheduler]).for_each(|node| node.join().unwrap());
}

#[test]
fn a_missing_scheduler_is_named_by_the_name_of_the_job() {
    let settings = Settings { startup_timeout: Some(Duration::from_millis(300)), ..job("nobody") };
    let error = KvStore::builder("dist_sync").settings(settings).connect().map(drop).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && error.to_string().contains("mem://nobody"), "{error:?}");
}

#[test]
fn a_panicking_worker_fails_the_others() {
    let job = job("panic");
    let scheduler = scheduler(&job);
    let servers = [server(&job), server(&job)];
    let settings = |rank| Settings { rank: Some(rank), ..job.clone() };
    let (first, second) = (settings(0), settings(1));
    let waits = start(move || {
        let store = KvStore::builder("dist_sync").settings(first).connect()?;
        store.init("k", &[0.0_f32; 4])?;
        store.push_pull("k", &[1.0_f32; 4])?.wait().map(drop)
    });
    let panics = start(move || {
        let store = KvStore::builder("dist_sync").settings(second).connect().unwrap();
        store.init("k", &[0.0_f32; 4]).unwrap();
        panic!("as the test wants");
    });
    assert!(panics.has_panicked());
    let error = waits.join().unwrap_err();
    assert!(error.to_string().contains("worker 1"), "{error}");
    assert!(scheduler.join().is_err());
    servers.into_iter().for_each(|server| drop(server.join()));
}
