//! `kv train` as one program that `mpirun` starts many times.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::job::{Outcome, Running};
use crate::killed::kv;

/// Runs a command of kv as so many ranks; `None`, with the reason on the output, where there is no Open MPI.
fn ranks(count: &str, args: &[&str], env: &[(&str, &str)]) -> Option<Outcome> {
    let version = Command::new("mpirun").arg("--version").stderr(Stdio::null()).output();
    if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI")) {
        println!("skipped: there is no mpirun of Open MPI on this machine");
        return None;
    }
    let inner = kv(args, env);
    let mut command = Command::new("mpirun");
    command.args(["-n", count, "--oversubscribe", "--bind-to", "none"]);
    command.args(["--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo"]);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // Tests may run as root, in a container.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Some(Running::of(command).finish())
}

/// All ranks have to be told a port that is free when rank 0 takes it: one that was free a moment ago.
fn address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn one_command_trains_in_every_role() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let job = ["train", "--epochs", "2", "--deterministic", "--json", "--save"];
    let (by_rank, launched) = (path("by-rank"), path("launched"));
    let address = address();
    let args = [&job[..], &[&by_rank, "--by-rank", "--servers", "2", "--scheduler", &address]].concat();
    let Some(outcome) = ranks("5", &args, &[]) else { return };
    outcome.assert(0, "");
    // Worker 0 alone reports.
    assert_eq!(outcome.out().len(), 3, "{:?}", outcome.out());
    let outcome = Running::of(kv(&[&job[..], &[&launched, "-n", "2", "-s", "2"]].concat(), &[])).finish();
    outcome.assert(0, "");
    assert!(std::fs::read(by_rank).unwrap() == std::fs::read(launched).unwrap(), "not the same weights");
}

#[test]
fn too_few_processes_are_told_how_many_it_takes() {
    let Some(outcome) = ranks("3", &["train"], &[("KV_BY_RANK", "1"), ("KV_NUM_SERVERS", "2")]) else { return };
    outcome.assert(1, "expected at least 4 processes (a scheduler, 2 servers and a worker), found 3");
}

#[test]
fn the_scheduler_and_the_servers_need_no_examples() {
    let address = address();
    let env = [("KV_BY_RANK", "1"), ("KV_SCHEDULER", address.as_str()), ("KV_NUM_SERVERS", "1")];
    let Some(outcome) = ranks("3", &["train", "--data", "/no/such/file"], &env) else { return };
    outcome.assert(1, "error: configuration: /no/such/file");
    assert_eq!(outcome.err().matches("/no/such/file").count(), 1, "only the worker looks:\n{}", outcome.err());
}

#[test]
fn without_a_launcher_there_is_no_rank() {
    let outcome = Running::of(kv(&["train", "--by-rank"], &[])).finish();
    outcome.assert(1, "expected a process that mpirun, mpiexec or srun has started");
    assert!(!outcome.err().contains("problems"), "{}", outcome.err());
}
