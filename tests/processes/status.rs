//! `kv status` of a running job.

use std::process::Command;

use crate::job::Running;
use crate::killed::kv;

fn status(address: &str, args: &[&str]) -> String {
    let mut command: Command = kv(&["status", "--scheduler", address], &[]);
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn shows_who_is_there_and_what_they_hold() {
    let mut scheduler = Running::of(kv(&["scheduler", "--port", "0", "-n", "1", "-s", "2"], &[]));
    let address = scheduler.line("listening on tcp://");
    let waiting = status(&address, &[]);
    assert!(waiting.contains("0 of 1 workers and 0 of 2 servers"), "{waiting}");
    let node = |args: &[&str], role| {
        let (host, port) = address.rsplit_once(':').unwrap();
        Running::of(kv(args, &[("DMLC_ROLE", role), ("DMLC_PS_ROOT_URI", host), ("DMLC_PS_ROOT_PORT", port)]))
    };
    let servers = [node(&["server"], "server"), node(&["server"], "server")];
    let mut worker = node(&["train", "--epochs", "1000000", "--lr", "0.001"], "worker");
    worker.line("epoch   2");
    // What the servers hold comes with their next heartbeat.
    let deadline = std::time::Instant::now() + crate::job::DEADLINE;
    let report = loop {
        let report: serde_json::Value = serde_json::from_str(&status(&address, &["--json"])).unwrap();
        let nodes = report["nodes"].as_array().unwrap();
        if nodes.iter().filter(|node| node["rounds"].as_u64().unwrap() > 0).count() == 2 {
            break report;
        }
        assert!(std::time::Instant::now() < deadline, "{report}");
    };
    let nodes = report["nodes"].as_array().unwrap();
    let bytes: u64 = nodes.iter().map(|node| node["bytes"].as_u64().unwrap()).sum();
    // The default network: 64 -> 64 -> 10, f32.
    assert_eq!(bytes, (64 * 64 + 64 + 64 * 10 + 10) * 4);
    for node in nodes {
        assert_eq!(node["state"], "live");
        assert!(node["address"].as_str().unwrap().starts_with("tcp://127.0.0.1:"));
        assert!(node["last_heard_s"].as_f64().unwrap() < 10.0);
    }
    let table = status(&address, &[]);
    assert!(table.contains("server") && table.contains("worker") && table.contains("live"), "{table}");
    worker.signal(rustix::process::Signal::TERM);
    worker.finish();
    servers.into_iter().for_each(|server| drop(server.finish()));
    scheduler.finish();
}

#[test]
fn says_which_address_does_not_answer() {
    let output = kv(&["status", "--scheduler", "127.0.0.1:1"], &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"));
}
