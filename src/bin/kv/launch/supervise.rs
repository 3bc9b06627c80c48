//! The order of things: start, watch, end; and which exit code the job has.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use kv_core::cluster::Role;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::group::{Attendant, Event, Group, Order};
use super::interrupts::Interrupts;
use super::output::{self, Forward, Printer, Stream};
use super::plan::{Address, LaunchPlan, Node, Stdout};

/// Events that may wait for the supervisor; whoever has another one waits.
const EVENTS_MAX: usize = 64;

/// After the grace period: how long killed processes may take to disappear before they are left to the system.
const KILL_TAKES: Duration = Duration::from_secs(5);

/// How long an interrupted launch waits for somebody to read its last lines.
const FLUSH_TAKES: Duration = Duration::from_secs(1);

/// Exit code of a program that was written to when nobody read any more: 128 + SIGPIPE.
const NOBODY_READS: u8 = 128 + 13;

/// Why the job ends before its workers are done.
struct Stop {
    code: u8,
    /// When the process that is to blame ended; `None` when none is.
    failed_at: Option<Instant>,
}

impl Stop {
    fn because_of_launch(code: u8) -> Self {
        Self { code, failed_at: None }
    }
}

/// Runs a job to its end; see [`super::run`].
pub(super) async fn supervise(plan: LaunchPlan) -> u8 {
    // Processes whose parent has ended become children of this one, which can reap them then.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let mut job = match Job::new(plan) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("error: cannot prepare to start processes: {error}");
            return 1;
        }
    };
    let result = match job.start().await {
        Ok(()) => job.watch().await,
        Err(stop) => Err(stop),
    };
    let code = match result {
        Ok(()) => 0,
        Err(stop) => job.stop(stop).await,
    };
    job.flush(code).await;
    code
}

struct Job {
    plan: LaunchPlan,
    printer: Printer,
    interrupts: Interrupts,
    orders: watch::Sender<Order>,
    events: mpsc::Receiver<Event>,
    events_sender: mpsc::Sender<Event>,
    attendants: JoinSet<()>,
    /// Nodes whose process has not ended.
    running: BTreeSet<Node>,
    /// Groups of which something is left.
    groups: usize,
    /// Nodes whose output is still open.
    outputs: usize,
    /// Whether this process was told to end.
    interrupted: bool,
}

impl Job {
    fn new(plan: LaunchPlan) -> io::Result<Self> {
        let (events_sender, events) = mpsc::channel(EVENTS_MAX);
        Ok(Self {
            plan,
            printer: Printer::start()?,
            interrupts: Interrupts::new()?,
            orders: watch::Sender::new(Order::Run),
            events,
            events_sender,
            attendants: JoinSet::new(),
            running: BTreeSet::new(),
            groups: 0,
            outputs: 0,
            interrupted: false,
        })
    }

    /// Starts the scheduler, and the others when it has said where it listens.
    async fn start(&mut self) -> Result<(), Stop> {
        let (sender, receiver) = oneshot::channel();
        let command = self.plan.scheduler_command();
        self.spawn(LaunchPlan::scheduler_node(), command, Some(sender)).await?;
        let address = self.scheduler_address(receiver).await?;
        for node in self.plan.nodes() {
            let command = self.plan.command(node, Some(&address));
            self.spawn(node, command, None).await?;
        }
        Ok(())
    }

    async fn scheduler_address(&mut self, mut line: oneshot::Receiver<String>) -> Result<Address, Stop> {
        const EXPECTED: &str = "as its first line `listening on tcp://host:port`";
        let deadline = Instant::now() + self.plan.startup_timeout;
        let mut closed = false;
        let found = loop {
            tokio::select! {
                biased;
                found = &mut line, if !closed => match found {
                    Ok(found) => break found,
                    // The output has ended; its process will, too.
                    Err(_) => closed = true,
                },
                Some(event) = self.events.recv() => {
                    self.count(&event);
                    if let Event::Exited { status, at, .. } = event {
                        let (how, code) = ending(&status);
                        self.say(&format!("the scheduler {how} before it said where it listens")).await;
                        return Err(Stop { code: code.max(1), failed_at: Some(at) });
                    }
                }
                stop = self.interrupts.next() => return Err(self.interrupt(stop).await),
                () = sleep_until(deadline) => {
                    let waited = self.plan.startup_timeout;
                    self.say(&format!("waited {waited:?} for the scheduler to say {EXPECTED}")).await;
                    return Err(Stop::because_of_launch(1));
                }
            }
        };
        match Address::in_line(&found) {
            Some(address) => Ok(address),
            None => {
                let shown: String = found.chars().take(80).collect();
                self.say(&format!("the scheduler was expected to say {EXPECTED}, found {shown:?}")).await;
                Err(Stop::because_of_launch(1))
            }
        }
    }

    async fn spawn(
        &mut self,
        node: Node,
        command: tokio::process::Command,
        first_line: Option<oneshot::Sender<String>>,
    ) -> Result<(), Stop> {
        let program = command.as_std().get_program().to_owned();
        let worker_0 = node.role == Role::Worker && node.rank == 0;
        let stderr = if worker_0 && self.plan.worker_0_on_terminal { Stdio::inherit() } else { Stdio::piped() };
        let (mut child, group) = match Group::spawn(command, stderr) {
            Ok(started) => started,
            Err(error) => {
                self.say(&format!("cannot start {node}: {}: {error}", program.display())).await;
                // As a shell says it: not found, or found and cannot be run.
                let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
                return Err(Stop { code, failed_at: Some(Instant::now()) });
            }
        };
        let over = watch::Sender::new(false);
        let mut outputs = JoinSet::new();
        let forward = |stream, label, first_line| Forward {
            stream,
            label,
            first_line,
            over: over.subscribe(),
            printer: self.printer.sender.clone(),
        };
        if let Some(stdout) = child.stdout.take() {
            let (stream, label) = match self.plan.stdout {
                Stdout::Labelled => (Stream::Out, Some(self.label(node, Stream::Out))),
                Stdout::Worker0 if worker_0 => (Stream::Out, None),
                Stdout::Worker0 => (Stream::Err, Some(self.label(node, Stream::Err))),
            };
            outputs.spawn(forward(stream, label, first_line).run(stdout));
        }
        if let Some(stderr) = child.stderr.take() {
            outputs.spawn(forward(Stream::Err, Some(self.label(node, Stream::Err)), None).run(stderr));
        }
        self.running.insert(node);
        self.groups += 1;
        self.outputs += 1;
        let orders = self.orders.subscribe();
        let events = self.events_sender.clone();
        let attendant = Attendant { node, child, group, outputs, over, orders, events, grace: self.plan.grace };
        self.attendants.spawn(attendant.run());
        Ok(())
    }

    fn label(&self, node: Node, stream: Stream) -> Vec<u8> {
        let color = match stream {
            Stream::Out => self.plan.color_stdout,
            Stream::Err => self.plan.color_stderr,
        };
        output::label(&node.to_string(), color.then(|| output::style(node)))
    }

    /// Watches until all processes have ended by themselves.
    async fn watch(&mut self) -> Result<(), Stop> {
        // Servers and scheduler end by themselves after the workers; from then on time counts.
        let mut deadline = None;
        while self.outputs > 0 {
            let late = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(event) = self.events.recv() => {
                    self.count(&event);
                    if let Event::Exited { node, status, at } = event {
                        let (how, code) = ending(&status);
                        if code != 0 {
                            self.say(&format!("{node} {how}; ending the others")).await;
                            return Err(Stop { code, failed_at: Some(at) });
                        }
                    }
                    if !self.running.iter().any(|node| node.role == Role::Worker) {
                        deadline.get_or_insert(Instant::now() + self.plan.grace);
                    }
                }
                stop = self.interrupts.next() => return Err(self.interrupt(stop).await),
                () = self.printer.sender.closed() => return Err(Stop::because_of_launch(NOBODY_READS)),
                () = late, if !self.running.is_empty() => {
                    let (who, grace) = (self.running_names(), self.plan.grace);
                    self.say(&format!("{who} still running {grace:?} after the last worker; ending now")).await;
                    return Err(Stop::because_of_launch(0));
                }
            }
        }
        Ok(())
    }

    /// Ends everything that runs, and returns the exit code.
    async fn stop(&mut self, stop: Stop) -> u8 {
        let mut first = stop;
        self.orders.send_replace(Order::Terminate);
        let mut deadline = Instant::now() + self.plan.grace;
        while self.groups > 0 {
            tokio::select! {
                Some(event) = self.events.recv() => {
                    self.count(&event);
                    let Event::Exited { node, status, at } = event else { continue };
                    // The end of a process may be heard of after that of one that ended later.
                    let (how, code) = ending(&status);
                    if code != 0 && first.failed_at.is_some_and(|first| at < first) {
                        self.say(&format!("before that, {node} {how}")).await;
                        first = Stop { code, failed_at: Some(at) };
                    }
                }
                _ = self.interrupts.next(), if !self.is_killing() => {
                    self.interrupted = true;
                    self.orders.send_replace(Order::Kill);
                    deadline = Instant::now() + KILL_TAKES;
                }
                () = sleep_until(deadline) => {
                    if self.is_killing() {
                        let who = self.running_names();
                        self.say(&format!("{who} cannot be killed; left to the system")).await;
                        // Their output may never end.
                        self.interrupted = true;
                        break;
                    }
                    if !self.running.is_empty() {
                        let (who, grace) = (self.running_names(), self.plan.grace);
                        self.say(&format!("{who} still running {grace:?} after being told to end; killing now")).await;
                    }
                    self.orders.send_replace(Order::Kill);
                    deadline = Instant::now() + KILL_TAKES;
                }
            }
        }
        first.code
    }

    fn is_killing(&self) -> bool {
        *self.orders.borrow() == Order::Kill
    }

    /// Waits until all output is written, as long as somebody reads it.
    async fn flush(mut self, code: u8) {
        let patience = if self.interrupted { FLUSH_TAKES } else { Duration::MAX };
        let written = async {
            while self.outputs > 0 && code != NOBODY_READS {
                match self.events.recv().await {
                    Some(Event::Drained) => self.outputs -= 1,
                    Some(_) => {}
                    None => break,
                }
            }
            self.attendants.shutdown().await;
            self.printer.finish().await;
        };
        tokio::select! {
            _ = timeout(patience, written) => {}
            _ = self.interrupts.next() => {}
        }
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::Exited { node, .. } => {
                self.running.remove(node);
            }
            Event::Gone => self.groups -= 1,
            Event::Drained => self.outputs -= 1,
        }
    }

    fn running_names(&self) -> String {
        let names: Vec<String> = self.running.iter().map(ToString::to_string).collect();
        format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
    }

    async fn interrupt(&mut self, signal: u8) -> Stop {
        self.interrupted = true;
        self.say("told to end; ending all processes").await;
        Stop::because_of_launch(128 + signal)
    }

    /// A message of launch itself. Not waited for long: when nobody reads, there is nobody to tell.
    async fn say(&self, text: &str) {
        let color = self.plan.color_stderr.then(|| output::style(LaunchPlan::scheduler_node()));
        let mut line = output::label("launch", color);
        line.extend_from_slice(text.as_bytes());
        line.push(b'\n');
        let _ = timeout(FLUSH_TAKES, self.printer.sender.send((Stream::Err, line))).await;
    }
}

/// How a process ended, in words and as an exit code.
fn ending(status: &io::Result<ExitStatus>) -> (String, u8) {
    let status = match status {
        Ok(status) => status,
        Err(error) => return (format!("could not be waited for: {error}"), 1),
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => ("ended".to_owned(), 0),
        (Some(code), _) => (format!("failed with exit code {code}"), u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => {
            let name = rustix::process::Signal::from_named_raw(signal);
            let name = name.map_or_else(|| signal.to_string(), |name| format!("{signal} ({name:?})"));
            (format!("was ended by signal {name}"), u8::try_from(128 + signal).unwrap_or(1))
        }
        (None, None) => ("ended in an unknown way".to_owned(), 1),
    }
}
