//! `kv launch` with real processes.
//!
//! Shell scripts stand for the scheduler and the servers. A script that says `pid` says its process group.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::job::{DEADLINE, FOREVER, Job, SCHEDULER, assert_gone, members};

/// A script that tells its group and lasts until it is ended.
const TELL_AND_LAST: &str = "echo pid $$; exec sleep 1000";

/// A script that tells its group and does not end when it is told to. What it starts inherits that.
const STUBBORN: &str = "trap '' TERM INT; echo pid $$; while :; do sleep 1000; done";

#[test]
fn every_line_has_the_name_of_its_process() {
    let outcome = Job::new("echo one; echo two >&2; printf '\\377 three\\r\\n'; printf last")
        .server("echo serving; echo careful >&2")
        .args(&["-n", "2", "-s", "2"])
        .run();
    outcome.assert(0, "");
    let mut out = outcome.out();
    out.sort();
    let expected = [
        "scheduler | listening on tcp://127.0.0.1:4242",
        "server 0 | serving",
        "server 1 | serving",
        "worker 0 | last",
        "worker 0 | one",
        "worker 0 | \u{fffd} three",
        "worker 1 | last",
        "worker 1 | one",
        "worker 1 | \u{fffd} three",
    ];
    assert_eq!(out, expected);
    let err = outcome.err();
    let mut err: Vec<_> = err.lines().collect();
    err.sort_unstable();
    assert_eq!(err, ["server 0 | careful", "server 1 | careful", "worker 0 | two", "worker 1 | two"]);
}

#[test]
fn every_process_is_told_its_place() {
    let say = "echo $DMLC_ROLE $DMLC_RANK of $DMLC_NUM_WORKER/$DMLC_NUM_SERVER, $DMLC_PS_ROOT_URI:$DMLC_PS_ROOT_PORT, \
        $DMLC_NODE_HOST, $KV_TRANSPORT, rank $KV_RANK, $ALL $SOME, job $KV_JOB";
    let outcome = Job::new(say)
        .scheduler(&format!("{SCHEDULER}; echo $*; {say}"))
        .server(&format!("echo $*; {say}"))
        .args(&["-n", "2", "--transport", "tcp", "--env", "ALL=a"])
        .args(&["--env-worker", "SOME=w x", "--env-server", "SOME=s"])
        .env("KV_RANK", "7")
        .env("DMLC_PS_ROOT_PORT", "99")
        .run();
    outcome.assert(0, "");
    let out = outcome.out().join("\n");
    let job = out.rsplit_once("job ").unwrap().1;
    assert!(job.starts_with("launch-") && job.len() == "launch-".len() + 16, "{job}");
    for expected in [
        "scheduler | --port 0".to_owned(),
        format!("scheduler | scheduler of 2/1, 127.0.0.1:, 127.0.0.1, tcp, rank , a , job {job}"),
        format!("server 0 | server 0 of 2/1, 127.0.0.1:4242, 127.0.0.1, tcp, rank , a s, job {job}"),
        format!("worker 0 | worker 0 of 2/1, 127.0.0.1:4242, 127.0.0.1, tcp, rank , a w x, job {job}"),
        format!("worker 1 | worker 1 of 2/1, 127.0.0.1:4242, 127.0.0.1, tcp, rank , a w x, job {job}"),
    ] {
        assert!(out.contains(&expected), "no {expected:?} in:\n{out}");
    }
}

#[test]
fn an_address_of_another_scheme_is_handed_on_whole() {
    let say = "echo at $KV_SCHEDULER, not at $DMLC_PS_ROOT_URI:$DMLC_PS_ROOT_PORT";
    let outcome = Job::new(say)
        .scheduler("echo listening on ipc:///run/kv/scheduler")
        .server(say)
        .env("KV_SCHEDULER", "10.0.0.1:1")
        .env("KV_BY_RANK", "1")
        .run();
    outcome.assert(0, "");
    for name in ["server 0", "worker 0"] {
        let line = format!("{name} | at ipc:///run/kv/scheduler, not at :");
        assert!(outcome.out().contains(&line), "no {line:?} in {:?}", outcome.out());
    }
    for transport in ["memory", "mpi"].into_iter().filter(|name| kv::transports().contains(name)) {
        let outcome = Job::new("").args(&["--transport", transport]).run();
        outcome.assert(1, "expected one between processes that launch starts");
        Job::new("").env("KV_TRANSPORT", transport).run().assert(1, "expected one between processes");
    }
}

#[test]
fn the_first_failure_is_the_exit_code() {
    let script = format!("case $DMLC_RANK in 1) exit 3;; esac; trap 'exit 9' TERM; {TELL_AND_LAST}");
    Job::new(&script).args(&["-n", "3"]).run().assert(3, "launch | worker 1 failed with exit code 3");
}

#[test]
fn the_last_words_of_a_failed_process_come_before_its_end() {
    let outcome = Job::new("echo no good >&2; exit 3").run();
    outcome.assert(3, "worker 0 | no good\nlaunch | worker 0 failed with exit code 3");
}

#[test]
fn a_process_ended_by_a_signal_fails_with_128_and_the_signal() {
    Job::new("kill -KILL $$").run().assert(137, "launch | worker 0 was ended by signal 9");
    let mut running = Job::new(FOREVER).server(TELL_AND_LAST).args(&["-s", "2"]).start();
    let server = running.pid("server 1 | pid ");
    kill_process(server, Signal::SEGV).unwrap();
    running.finish().assert(139, "launch | server 1 was ended by signal 11");
}

#[test]
fn a_program_that_cannot_be_started_ends_the_job() {
    let mut groups = Vec::new();
    for (program, code) in [("./no-such-program", 127), ("/", 126)] {
        let mut running =
            Job::new("").scheduler(&format!("echo pid $$ >&2; {SCHEDULER}; {FOREVER}")).worker(&[program]).start();
        groups.push(running.pid("scheduler | pid "));
        running.finish().assert(code, &format!("launch | cannot start worker 0: {program}: "));
    }
    assert_gone(&groups);
    Job::new("").kv("./no-such-program").run().assert(127, "launch | cannot start scheduler: ./no-such-program: ");
}

#[test]
fn a_failure_ends_everything_that_was_started() {
    // Each process starts another one, which the launcher does not know.
    let family = "sleep 1000 & echo pid $$; wait";
    let mut running = Job::new(&format!("case $DMLC_RANK in 0) {TELL_AND_LAST};; esac; {family}"))
        .scheduler(&format!("{SCHEDULER}; {family}"))
        .server(family)
        .args(&["-n", "2"])
        .start();
    let victim = running.pid("worker 0 | pid ");
    let groups = ["scheduler", "server 0", "worker 1"].map(|name| running.pid(&format!("{name} | pid ")));
    assert!(groups.iter().all(|group| members(*group).len() == 2));
    kill_process(victim, Signal::KILL).unwrap();
    running.finish().assert(137, "launch | worker 0 was ended by signal 9");
    assert_gone(&groups);
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let mut running = Job::new(STUBBORN).args(&["-n", "2", "--grace", "300ms"]).start();
    let groups = [running.pid("worker 0 | pid "), running.pid("worker 1 | pid ")];
    kill_process(groups[1], Signal::KILL).unwrap();
    let outcome = running.finish();
    outcome.assert(137, "launch | worker 0 is still running 300ms after being told to end; killing now");
    assert!(outcome.elapsed >= Duration::from_millis(300), "{:?}", outcome.elapsed);
    assert_gone(&groups);
}

#[test]
fn a_process_has_the_grace_period_to_end_well() {
    let script = "trap 'echo saved; exit 0' TERM; sleep 1000 & echo pid $$; wait";
    let mut running = Job::new(script).start();
    let group = running.pid("worker 0 | pid ");
    running.signal(Signal::TERM);
    let outcome = running.finish();
    outcome.assert(143, "launch | told to end");
    assert!(outcome.out().contains(&"worker 0 | saved".to_owned()));
    assert_gone(&[group]);
}

#[test]
fn interrupt_terminate_and_hangup_clean_up() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        if signal == Signal::HUP && hangup_is_ignored() {
            println!("SIGHUP is ignored here (nohup), and so it is by launch: not tested");
            continue;
        }
        let mut running =
            Job::new(TELL_AND_LAST).scheduler(&format!("{SCHEDULER}; {TELL_AND_LAST}")).server(TELL_AND_LAST).start();
        let groups = ["scheduler", "server 0", "worker 0"].map(|name| running.pid(&format!("{name} | pid ")));
        running.signal(signal);
        running.finish().assert(code, "launch | told to end; ending all processes");
        assert_gone(&groups);
    }
}

/// Children inherit it.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 != 0
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let mut running = Job::new(STUBBORN).args(&["--grace", "1000"]).start();
    let group = running.pid("worker 0 | pid ");
    running.signal(Signal::INT);
    running.line("launch | told to end");
    running.signal(Signal::INT);
    running.finish().assert(130, "");
    assert_gone(&[group]);
}

#[test]
fn an_interrupt_is_heard_before_the_scheduler_speaks() {
    let mut running = Job::new("").scheduler(&format!("echo pid $$ >&2; {FOREVER}")).start();
    let group = running.pid("scheduler | pid ");
    running.signal(Signal::TERM);
    running.finish().assert(143, "launch | told to end");
    assert_gone(&[group]);
}

#[test]
fn a_scheduler_must_say_where_it_listens() {
    let start = |script: &str| Job::new("echo started").scheduler(script).args(&["--startup-timeout", "200ms"]);
    for (script, code, message) in [
        (FOREVER, 1, "launch | waited 200ms for the scheduler to say as its first line `listening on tcp://host:port`"),
        ("exec >&-; sleep 1000", 1, "launch | waited 200ms for the scheduler"),
    ] {
        let outcome = start(script).run();
        outcome.assert(code, message);
        assert_eq!(outcome.out(), [""; 0]);
    }
    for (script, code, message) in [
        ("exit 4", 4, "launch | the scheduler failed with exit code 4 before it said where it listens"),
        ("exit 0", 1, "launch | the scheduler ended before it said where it listens"),
        ("kill $$", 143, "launch | the scheduler was ended by signal 15"),
        ("echo hello; exec sleep 1000", 1, "found \"hello\""),
        ("echo listening on nothing; exec sleep 1000", 1, "found \"listening on nothing\""),
    ] {
        let outcome = Job::new("echo started").scheduler(script).run();
        outcome.assert(code, message);
        assert!(!outcome.out().contains(&"worker 0 | started".to_owned()));
    }
}

#[test]
fn servers_that_do_not_end_after_the_workers_are_ended() {
    let mut running = Job::new("").server(TELL_AND_LAST).args(&["--grace", "200ms"]).start();
    let group = running.pid("server 0 | pid ");
    running.finish().assert(0, "launch | server 0 is still running 200ms after the last worker; ending now");
    assert_gone(&[group]);
}

#[test]
fn a_server_that_fails_after_the_workers_is_a_failure() {
    let job = Job::new("echo > done").server("read line < done; exit 6").args(&["--grace", "60"]);
    assert!(Command::new("mkfifo").arg(job.dir().join("done")).status().unwrap().success());
    job.run().assert(6, "launch | server 0 failed with exit code 6");
}

#[test]
fn what_a_worker_leaves_behind_ends_with_it() {
    let mut running = Job::new("sleep 1000 & echo pid $$").start();
    let group = running.pid("worker 0 | pid ");
    running.finish().assert(0, "");
    assert_gone(&[group]);
}

#[test]
fn a_daemon_that_holds_the_output_does_not_hold_the_job() {
    // It has left the group, so it is not ended; only its output is no longer passed on.
    let job = Job::new("setsid sh -c 'echo daemon $$; echo > ready; exec sleep 1000' & read line < ready");
    assert!(Command::new("mkfifo").arg(job.dir().join("ready")).status().unwrap().success());
    let mut running = job.start();
    let daemon = running.pid("worker 0 | daemon ");
    running.finish().assert(0, "");
    kill_process(daemon, Signal::KILL).unwrap();
}

#[test]
fn long_lines_are_passed_on_in_pieces() {
    let outcome = Job::new("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end").run();
    outcome.assert(0, "");
    let out = outcome.out();
    let pieces: Vec<_> = out.iter().filter_map(|line| line.strip_prefix("worker 0 | x")).collect();
    assert!(pieces.iter().all(|piece| piece.len() < 64 * 1024));
    assert_eq!(pieces.iter().map(|piece| piece.len() + 1).sum::<usize>(), 300_000);
    assert_eq!(out.last().unwrap(), "worker 0 | end");
}

#[test]
fn lines_of_many_processes_are_not_mixed() {
    let script = "i=0; while [ $i -lt 300 ]; do echo $DMLC_RANK-$i-$DMLC_RANK; i=$((i+1)); done";
    let outcome = Job::new(script).args(&["-n", "4"]).run();
    outcome.assert(0, "");
    let out = outcome.out();
    for rank in 0..4 {
        let label = format!("worker {rank} | ");
        let lines: Vec<_> = out.iter().filter_map(|line| line.strip_prefix(&label)).collect();
        let expected: Vec<_> = (0..300).map(|i| format!("{rank}-{i}-{rank}")).collect();
        assert_eq!(lines, expected);
    }
}

#[test]
fn worker_0_can_have_the_standard_output_to_itself() {
    let outcome = Job::new("printf 'out of %s\\r\\n\\377' $DMLC_RANK; echo aside >&2")
        .args(&["-n", "2", "--stdout", "worker-0"])
        .server("echo serving")
        .run();
    outcome.assert(0, "scheduler | listening on tcp://127.0.0.1:4242\n");
    assert_eq!(outcome.stdout, b"out of 0\r\n\xff");
    for line in ["server 0 | serving\n", "worker 0 | aside\n", "worker 1 | out of 1\n", "worker 1 | \u{fffd}\n"] {
        assert!(outcome.err().contains(line), "no {line:?} in:\n{}", outcome.err());
    }
}

/// Starts a job that writes without end and reads its output up to the worker's process group.
fn start_flood() -> (Child, BufReader<ChildStdout>, Pid, Job) {
    let job = Job::new("echo pid $$; while :; do echo more; done");
    let mut child = job.command().stderr(Stdio::null()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("worker 0 | pid ") {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "launch has ended");
    }
    let pid = line.trim_start_matches("worker 0 | pid ").trim();
    let group = Pid::from_raw(pid.parse().unwrap()).unwrap();
    (child, stdout, group, job)
}

fn exit_code(mut child: Child) -> Option<i32> {
    let (sender, code) = sync_channel(1);
    std::thread::spawn(move || sender.send(child.wait().unwrap().code()));
    code.recv_timeout(DEADLINE).unwrap()
}

#[test]
fn when_nobody_will_read_the_output_the_job_ends() {
    let (child, stdout, group, _job) = start_flood();
    drop(stdout);
    assert_eq!(exit_code(child), Some(141));
    assert_gone(&[group]);
}

#[test]
fn a_reader_that_stalls_does_not_keep_signals_from_being_heard() {
    let (child, stdout, group, _job) = start_flood();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(exit_code(child), Some(143));
    assert_gone(&[group]);
    drop(stdout);
}

#[test]
fn kv_processes_end_when_launch_is_killed() {
    // A launch is a kv process too: as a worker of another one, it ends its own job when that one is killed.
    let kv = env!("CARGO_BIN_EXE_kv");
    let inner = [kv, "launch", "--kv", "sh", "--", "sh", "-c", "echo pid $$ > alive; exec sleep 1000 > alive"];
    let job = Job::new("").worker(&inner);
    let alive = job.dir().join("alive");
    assert!(Command::new("mkfifo").arg(&alive).status().unwrap().success());
    let running = job.start();
    let (sender, told) = sync_channel(2);
    std::thread::spawn(move || {
        let mut alive = BufReader::new(std::fs::File::open(alive).unwrap());
        let mut line = String::new();
        alive.read_line(&mut line).unwrap();
        sender.send(line).unwrap();
        // Ends when no process holds the other end.
        let mut rest = String::new();
        alive.read_to_string(&mut rest).unwrap();
        sender.send(rest).unwrap();
    });
    assert!(told.recv_timeout(DEADLINE).unwrap().starts_with("pid "));
    running.signal(Signal::KILL);
    assert_eq!(told.recv_timeout(DEADLINE).unwrap(), "");
    assert_eq!(running.finish().code, -1);
}

#[test]
fn a_process_whose_launcher_is_already_gone_does_not_start() {
    let mut gone = Command::new("true").spawn().unwrap();
    let pid = gone.id().to_string();
    gone.wait().unwrap();
    let output = Job::new("").command().env("KV_LAUNCHER_PID", pid).output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is gone"));
}

#[test]
fn a_dry_run_prints_the_commands() {
    let outcome = Job::new("echo 'it'").args(&["-s", "2", "--dry-run", "--env-worker", "A=b c"]).run();
    outcome.assert(0, "");
    let out = outcome.out();
    let names: Vec<_> = out.iter().filter(|line| line.starts_with('#')).collect();
    assert_eq!(names, ["# scheduler", "# server 0", "# server 1", "# worker 0"]);
    assert!(out[1].starts_with("DMLC_ROLE=scheduler ") && out[1].ends_with(" sh scheduler --port 0"), "{}", out[1]);
    assert!(out[5].contains(" DMLC_PS_ROOT_PORT=PORT DMLC_RANK=1 DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=2 "), "{}", out[5]);
    assert!(
        out[7].starts_with("A='b c' DMLC_ROLE=worker ") && out[7].ends_with(r"sh -c 'echo '\''it'\'''"),
        "{}",
        out[7]
    );
}

#[test]
fn wrong_usage_is_told() {
    for (args, message) in [
        (&["--env", "DMLC_RANK=1"][..], "launch itself sets DMLC_RANK"),
        (&["--env", "A"][..], "expected NAME=VALUE"),
        (&["--transport", "pigeon"][..], "expected one of tcp, "),
        (&["-n", "0"][..], "0 is not in 1..=65535"),
        (&["--grace", "soon"][..], "expected a duration such as 10s"),
    ] {
        Job::new("").args(args).run().assert(2, message);
    }
}
