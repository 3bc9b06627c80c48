//! `kill -9` and `kill -STOP` of each role: everybody else ends by itself, soon, and says why. No launcher helps.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::job::{Outcome, Running};

/// A job of separate processes that trains for ever.
struct Cluster {
    scheduler: Running,
    servers: Vec<Running>,
    workers: Vec<Running>,
}

pub(crate) fn kv(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("KV_") || name.starts_with("DMLC_")) {
            command.env_remove(name);
        }
    }
    command.args(args).envs(env.iter().copied());
    command
}

impl Cluster {
    fn start(job: &[(&str, &str)]) -> Self {
        let mut scheduler = Running::of(kv(&["scheduler", "--port", "0", "-n", "2", "-s", "2"], job));
        let address = scheduler.line("listening on tcp://");
        let (host, port) = address.rsplit_once(':').unwrap();
        let node = |role, rank, args: &[&str]| {
            let place =
                [("DMLC_ROLE", role), ("DMLC_PS_ROOT_URI", host), ("DMLC_PS_ROOT_PORT", port), ("DMLC_RANK", rank)];
            Running::of(kv(args, &place))
        };
        let servers = ["0", "1"].map(|rank| node("server", rank, &["server"]));
        let train = ["train", "--epochs", "1000000", "--lr", "0.01"];
        let workers = ["0", "1"].map(|rank| node("worker", rank, &train));
        let mut cluster = Self { scheduler, servers: servers.into(), workers: workers.into() };
        // Rounds are being made.
        cluster.workers[0].line("epoch   2");
        cluster
    }

    fn finish(self) -> (Outcome, Vec<Outcome>, Vec<Outcome>) {
        let servers = self.servers.into_iter().map(Running::finish).collect();
        let workers = self.workers.into_iter().map(Running::finish).collect();
        (self.scheduler.finish(), servers, workers)
    }
}

/// Shorter than the liveness deadline: the loss of a link is noticed at once.
const AT_ONCE: Duration = Duration::from_secs(8);

fn assert_failed<'a>(ended: impl IntoIterator<Item = &'a Outcome>, message: &str) {
    for outcome in ended {
        assert_eq!(outcome.code, 1, "{}", outcome.err());
        assert!(outcome.err().contains(message), "no {message:?} in:\n{}", outcome.err());
    }
}

#[test]
fn a_killed_worker_is_named_by_everybody() {
    let cluster = Cluster::start(&[]);
    let killed = Instant::now();
    cluster.workers[1].signal(Signal::KILL);
    let (scheduler, servers, workers) = cluster.finish();
    assert!(killed.elapsed() < AT_ONCE);
    assert_failed(servers.iter().chain([&scheduler, &workers[0]]), "worker 1 at tcp://");
}

#[test]
fn the_others_go_on_without_a_killed_worker_when_told_so() {
    let mut cluster = Cluster::start(&[("KV_WORKER_LOSS", "continue")]);
    cluster.workers[1].signal(Signal::KILL);
    let seen = cluster.workers[0].last_epoch();
    cluster.workers[0].line(&format!("epoch {:>3}", seen + 100));
    cluster.workers[0].signal(Signal::KILL);
    cluster.finish();
}

#[test]
fn a_stopped_worker_is_lost_after_the_liveness_deadline() {
    let mut cluster = Cluster::start(&[("KV_DEAD_AFTER", "2s"), ("KV_HEARTBEAT_INTERVAL", "500ms")]);
    // Killed when this test is over, also by its `drop`.
    let stopped = cluster.workers.remove(1);
    kill_process(stopped.pid, Signal::STOP).unwrap();
    let (scheduler, servers, workers) = cluster.finish();
    assert_failed(servers.iter().chain([&scheduler]).chain(&workers), "no heartbeat for 2s");
}

#[test]
fn a_killed_server_ends_everybody() {
    let cluster = Cluster::start(&[]);
    let killed = Instant::now();
    cluster.servers[1].signal(Signal::KILL);
    let (scheduler, servers, workers) = cluster.finish();
    assert!(killed.elapsed() < AT_ONCE);
    assert_failed(workers.iter().chain([&scheduler, &servers[0]]), "server 1 at tcp://");
}

#[test]
fn a_killed_scheduler_ends_everybody() {
    let cluster = Cluster::start(&[]);
    let killed = Instant::now();
    cluster.scheduler.signal(Signal::KILL);
    let (_, servers, workers) = cluster.finish();
    assert!(killed.elapsed() < AT_ONCE);
    assert_failed(servers.iter().chain(&workers), "the scheduler at tcp://");
}

#[test]
fn a_job_that_does_not_gather_says_who_is_missing() {
    let mut scheduler =
        Running::of(kv(&["scheduler", "--port", "0", "-n", "1", "-s", "2", "--startup-timeout", "2s"], &[]));
    let address = scheduler.line("listening on tcp://");
    let server = Running::of(kv(&["server", "--scheduler", &address, "--rank", "0"], &[]));
    let (scheduler, server) = (scheduler.finish(), server.finish());
    assert_failed([&scheduler, &server], "server 1, worker 0");
}

#[test]
fn a_port_in_use_and_a_scheduler_out_of_reach_are_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let scheduler = Running::of(kv(&["scheduler", "--bind", "127.0.0.1", "--port", &port, "-n", "1", "-s", "1"], &[]));
    assert_failed([&scheduler.finish()], &format!("cannot listen on tcp://127.0.0.1:{port}"));
    drop(taken);
    let nobody = format!("127.0.0.1:{port}");
    let server = Running::of(kv(&["server", "--scheduler", &nobody, "--startup-timeout", "1s"], &[]));
    assert_failed([&server.finish()], &nobody);
}
