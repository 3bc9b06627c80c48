//! A launch under test: shell scripts stand for the scheduler and the servers, and every wait has a deadline.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// No wait of these tests takes this long unless something is wrong.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A scheduler that says where it listens and is done.
pub(crate) const SCHEDULER: &str = "echo listening on tcp://127.0.0.1:4242";

/// Lasts until it is ended.
pub(crate) const FOREVER: &str = "exec sleep 1000";

/// How to launch.
pub(crate) struct Job {
    dir: tempfile::TempDir,
    kv: &'static str,
    args: Vec<OsString>,
    env: Vec<(&'static str, &'static str)>,
    worker: Vec<OsString>,
}

impl Job {
    /// One worker that runs `script`; scheduler and server are done at once.
    pub(crate) fn new(script: &str) -> Self {
        let job =
            Self { dir: tempfile::tempdir().unwrap(), kv: "sh", args: Vec::new(), env: Vec::new(), worker: Vec::new() };
        job.scheduler(SCHEDULER).server("exit 0").worker(&["sh", "-c", script])
    }

    pub(crate) fn scheduler(self, script: &str) -> Self {
        std::fs::write(self.dir.path().join("scheduler"), script).unwrap();
        self
    }

    pub(crate) fn server(self, script: &str) -> Self {
        std::fs::write(self.dir.path().join("server"), script).unwrap();
        self
    }

    pub(crate) fn worker(mut self, command: &[&str]) -> Self {
        self.worker = command.iter().map(Into::into).collect();
        self
    }

    pub(crate) fn kv(mut self, program: &'static str) -> Self {
        self.kv = program;
        self
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.push((name, value));
        self
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
        // `sh scheduler --port 0` in this directory runs the script of that name.
        command.current_dir(self.dir()).args(["launch", "--kv", self.kv]).args(&self.args).arg("--").args(&self.worker);
        command.envs(self.env.iter().copied()).env_remove("KV_LAUNCHER_PID");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(self) -> Running {
        Running::new(self.command().spawn().unwrap(), Some(self))
    }

    pub(crate) fn run(self) -> Outcome {
        self.start().finish()
    }
}

/// A launch that has been started; killed, with the groups it told of, when dropped.
pub(crate) struct Running {
    pub(crate) pid: Pid,
    started: Instant,
    code: Receiver<i32>,
    lines: Receiver<Line>,
    seen: Vec<Line>,
    ended: bool,
    /// Its directory, as long as it runs.
    _job: Option<Job>,
}

struct Line {
    is_error: bool,
    bytes: Vec<u8>,
}

/// A launch that has ended.
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) elapsed: Duration,
}

impl Running {
    /// Any other command of the program under test.
    pub(crate) fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::new(command.spawn().unwrap(), None)
    }

    fn new(mut child: Child, job: Option<Job>) -> Self {
        let pid = Pid::from_child(&child);
        let (sender, lines) = sync_channel(1 << 16);
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let error_sender = sender.clone();
        std::thread::spawn(move || read_lines(stdout, false, &sender));
        std::thread::spawn(move || read_lines(stderr, true, &error_sender));
        let (sender, code) = sync_channel(1);
        std::thread::spawn(move || sender.send(child.wait().unwrap().code().unwrap_or(-1)));
        Self { pid, started: Instant::now(), code, lines, seen: Vec::new(), ended: false, _job: job }
    }

    /// Waits for a line that starts with `start`, and returns the rest of it.
    pub(crate) fn line(&mut self, start: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        let mut next = 0;
        loop {
            while next < self.seen.len() {
                let text = String::from_utf8_lossy(&self.seen[next].bytes);
                if let Some(rest) = text.strip_prefix(start) {
                    return rest.trim_end().to_owned();
                }
                next += 1;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("no line starts with {start:?}: {error}; there are:\n{}", self.text()),
            }
        }
    }

    /// The last epoch that a training has told of so far.
    pub(crate) fn last_epoch(&mut self) -> u64 {
        self.seen.extend(self.lines.try_iter());
        let number = |line: &Line| {
            let text = String::from_utf8_lossy(&line.bytes).into_owned();
            text.strip_prefix("epoch")?.split_whitespace().next()?.parse().ok()
        };
        self.seen.iter().rev().find_map(number).unwrap_or(0)
    }

    /// Waits for a line that ends in a process id.
    pub(crate) fn pid(&mut self, start: &str) -> Pid {
        Pid::from_raw(self.line(start).trim().parse().unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    pub(crate) fn finish(mut self) -> Outcome {
        let code = match self.code.recv_timeout(DEADLINE) {
            Ok(code) => code,
            Err(error) => panic!("it does not end: {error}; it said:\n{}", self.text()),
        };
        let elapsed = self.started.elapsed();
        self.ended = true;
        // The pipes close with the last process that holds them.
        while let Ok(line) = self.lines.recv_timeout(DEADLINE) {
            self.seen.push(line);
        }
        let of = |is_error| self.seen.iter().filter(move |line| line.is_error == is_error);
        let join = |is_error| of(is_error).flat_map(|line| line.bytes.clone()).collect();
        Outcome { code, stdout: join(false), stderr: join(true), elapsed }
    }

    fn text(&self) -> String {
        self.seen.iter().map(|line| String::from_utf8_lossy(&line.bytes)).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _ = kill_process(self.pid, Signal::KILL);
        for line in self.text().lines() {
            if let Some(pid) = line.rsplit_once("pid ").and_then(|(_, pid)| pid.parse().ok()).and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

impl Outcome {
    pub(crate) fn out(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.stdout).lines().map(str::to_owned).collect()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub(crate) fn assert(&self, code: i32, message: &str) {
        assert!(self.code == code, "exit code {}, expected {code}:\n{}", self.code, self.err());
        assert!(self.err().contains(message), "no {message:?} in:\n{}", self.err());
    }
}

fn read_lines(from: impl Read, is_error: bool, to: &SyncSender<Line>) {
    let mut from = BufReader::new(from);
    loop {
        let mut bytes = Vec::new();
        match from.read_until(b'\n', &mut bytes) {
            Ok(n) if n > 0 && to.send(Line { is_error, bytes }).is_ok() => {}
            _ => return,
        }
    }
}

/// Processes that live in a group, as `pid (name)`.
pub(crate) fn members(group: Pid) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name may hold anything, also brackets and spaces; what follows it is: state, parent, group.
        let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
        let mut fields = rest.split(' ');
        let (state, of) = (fields.next(), fields.nth(1).and_then(|field| field.parse().ok()));
        if of == Some(group.as_raw_pid()) && !matches!(state, Some("Z" | "X")) {
            found.push(format!("{name})"));
        }
    }
    found
}

#[track_caller]
pub(crate) fn assert_gone(groups: &[Pid]) {
    for group in groups {
        assert_eq!(members(*group), Vec::<String>::new(), "left of group {group:?}");
    }
}
