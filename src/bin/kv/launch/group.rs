//! One process of the job with all that it starts: from its start to the end of the last of them.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::plan::Node;

/// How often a group is looked at until its last member has ended. Nothing tells of a process that is not a child.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long the system may take to end what was killed.
const KILL_TAKES: Duration = Duration::from_secs(2);

/// How long the announcement of a process's end waits for its last lines, so that they come first.
const LAST_LINES: Duration = Duration::from_millis(100);

/// What the supervisor wants of all groups. It only ever gets stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Run,
    Terminate,
    Kill,
}

/// What has become of a node.
#[derive(Debug)]
pub(super) enum Event {
    /// Its process has ended.
    Exited { node: Node, status: io::Result<ExitStatus>, at: Instant },
    /// Everything that it started has ended.
    Gone,
    /// All of its output is passed on.
    Drained,
}

/// A process group. Killed when dropped, so that no way out of this program leaves it behind.
pub(super) struct Group {
    id: Pid,
    gone: bool,
}

impl Group {
    /// Starts a command as the leader of a new group.
    pub(super) fn spawn(mut command: Command, stderr: Stdio) -> io::Result<(Child, Self)> {
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let child = command.spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let id = id.ok_or_else(|| io::Error::other("the process has no id"))?;
        Ok((child, Self { id, gone: false }))
    }

    fn signal(&self, signal: Signal) {
        // The only errors are that the group is gone, or belongs to somebody else by now.
        let _ = kill_process_group(self.id, signal);
    }

    /// Whether all have ended. The leader must be reaped; orphans that this process has inherited are reaped here.
    fn is_empty(&mut self) -> bool {
        while let Ok(Some(_)) = waitpgid(self.id, WaitOptions::NOHANG) {}
        self.gone = test_kill_process_group(self.id).is_err();
        self.gone
    }

    async fn empty_before(&mut self, deadline: Instant) -> bool {
        loop {
            if self.is_empty() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.gone {
            self.signal(Signal::KILL);
        }
    }
}

/// A started process, and what takes care of it.
pub(super) struct Attendant {
    pub(super) node: Node,
    pub(super) child: Child,
    pub(super) group: Group,
    /// Pass on its output.
    pub(super) outputs: JoinSet<()>,
    /// Tells the outputs that no more will come.
    pub(super) over: watch::Sender<bool>,
    pub(super) orders: watch::Receiver<Order>,
    pub(super) events: mpsc::Sender<Event>,
    /// How long processes that outlive the leader are given.
    pub(super) grace: Duration,
}

impl Attendant {
    /// Follows orders until the whole group is gone, and tells of it.
    pub(super) async fn run(mut self) {
        let mut told = Order::Run;
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status,
                order = next(&mut self.orders) => self.obey(order, &mut told),
            }
        };
        let at = Instant::now();
        let drained = async { while self.outputs.join_next().await.is_some() {} };
        let _ = timeout_at(at + LAST_LINES, drained).await;
        self.tell(Event::Exited { node: self.node, status, at }).await;

        // Whatever the process has started and left behind ends with it. It is told once: many programs take a second
        // signal for impatience.
        self.obey(Order::Terminate, &mut told);
        let deadline = Instant::now() + self.grace;
        while told < Order::Kill {
            tokio::select! {
                empty = self.group.empty_before(deadline) => {
                    if empty {
                        break;
                    }
                    self.obey(Order::Kill, &mut told);
                }
                order = next(&mut self.orders) => self.obey(order, &mut told),
            }
        }
        self.group.empty_before(Instant::now() + KILL_TAKES).await;
        self.tell(Event::Gone).await;

        self.over.send_replace(true);
        while self.outputs.join_next().await.is_some() {}
        self.tell(Event::Drained).await;
    }

    fn obey(&self, order: Order, told: &mut Order) {
        if order <= *told {
            return;
        }
        *told = order;
        match order {
            Order::Run => {}
            Order::Terminate => self.group.signal(Signal::TERM),
            Order::Kill => self.group.signal(Signal::KILL),
        }
    }

    async fn tell(&self, event: Event) {
        // The supervisor only stops listening when it has given up.
        let _ = self.events.send(event).await;
    }
}

/// The next order; never, once nobody can give one.
async fn next(orders: &mut watch::Receiver<Order>) -> Order {
    match orders.changed().await {
        Ok(()) => *orders.borrow_and_update(),
        Err(_) => std::future::pending().await,
    }
}
