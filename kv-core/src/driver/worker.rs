//! A worker's driver, and the handle through which the application speaks to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{Application, drive, now};
use crate::consistency::Consistency;
use crate::error::Error;
use crate::machine::{Action, CallId, Joined, MemberConfig, Op, Outcome, Resend, WorkerNode};
use crate::van::{Inbox, Van};

/// How much an application may have unfinished before the next call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Calls.
    pub calls: u32,
    /// Bytes of values on their way out. A single larger call is let in when it is alone.
    pub bytes: u32,
}

impl Default for WindowLimits {
    fn default() -> Self {
        Self { calls: 1024, bytes: 256 * 1024 * 1024 }
    }
}

/// Settings of a worker's driver.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// How it joins.
    pub member: MemberConfig,
    /// Consistency of its keys.
    pub consistency: Consistency,
    /// Deadline of every wait.
    pub timeout: Duration,
    /// How much may be unfinished.
    pub window: WindowLimits,
}

/// Speaks to a worker's driver, from any thread. Cheap to clone; when the last clone is dropped, the worker leaves
/// the job without a barrier.
#[derive(Clone)]
pub struct WorkerHandle {
    commands: mpsc::Sender<Command>,
    window: Arc<Window>,
}

struct Window {
    calls: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    bytes_max: u32,
    /// Why the driver ended, once it has.
    ended: Mutex<Option<Error>>,
}

enum Command {
    Op(Op, i32, Open),
    Barrier(Open),
}

/// A call that is not finished: who waits, and its share of the window.
struct Open {
    done: oneshot::Sender<Result<Outcome, Error>>,
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

/// A call under way. Dropping it does not undo the call.
#[must_use = "the call may fail; wait for it"]
pub struct Submitted {
    done: oneshot::Receiver<Result<Outcome, Error>>,
    window: Arc<Window>,
}

impl Window {
    fn ended(&self) -> Error {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Error::Closed)
    }
}

impl Future for Submitted {
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.done).poll(context).map(|done| done.unwrap_or_else(|_| Err(self.window.ended())))
    }
}

impl WorkerHandle {
    /// Starts a call. Waits while the window is full; resolves when the call is on its way, with a handle to its end.
    ///
    /// # Errors
    /// Why the worker cannot take calls any more.
    ///
    /// # Cancel safety
    /// A dropped future has started the whole call or nothing.
    pub async fn submit(&self, op: Op, priority: i32) -> Result<Submitted, Error> {
        let bytes = match &op {
            Op::Init(entries) => entries.iter().map(|(_, tensor)| tensor.buffer().len()).sum(),
            Op::Push(entries) | Op::PushPull(entries) => entries.iter().map(|(_, value)| value.buffer.len()).sum(),
            Op::Pull(_) | Op::SetUpdater(_) | Op::Leave => 0,
        };
        self.start(bytes, |open| Command::Op(op, priority, open)).await
    }

    /// Starts a barrier of all workers.
    ///
    /// # Errors
    /// As [`WorkerHandle::submit`].
    ///
    /// # Cancel safety
    /// As [`WorkerHandle::submit`].
    pub async fn barrier(&self) -> Result<Submitted, Error> {
        self.start(0, Command::Barrier).await
    }

    async fn start(&self, bytes: usize, command: impl FnOnce(Open) -> Command) -> Result<Submitted, Error> {
        let window = &self.window;
        let ended = |_| window.ended();
        let call = Arc::clone(&window.calls).acquire_owned().await.map_err(ended)?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(window.bytes_max);
        let bytes = match bytes {
            0 => None,
            _ => Some(Arc::clone(&window.bytes).acquire_many_owned(bytes).await.map_err(ended)?),
        };
        let (done, receiver) = oneshot::channel();
        let command = command(Open { done, _permits: (call, bytes) });
        self.commands.send(command).await.map_err(|_| window.ended())?;
        Ok(Submitted { done: receiver, window: Arc::clone(window) })
    }
}

/// Starts a worker: the handle for the application, its place in the job once it has joined, and the driver itself,
/// to be run by a thread or a task of its own.
///
/// The place resolves to an error when joining fails.
pub fn start_worker(
    settings: WorkerSettings,
    van: Arc<dyn Van>,
    inbox: Inbox,
) -> (WorkerHandle, oneshot::Receiver<Result<Joined, Error>>, impl Future<Output = Result<(), Error>> + Send) {
    let (commands, receiver) = mpsc::channel(256);
    let (joined, place) = oneshot::channel();
    let window = Arc::new(Window {
        calls: Arc::new(Semaphore::new(settings.window.calls.max(1) as usize)),
        bytes: Arc::new(Semaphore::new(settings.window.bytes.max(1) as usize)),
        bytes_max: settings.window.bytes.max(1),
        ended: Mutex::new(None),
    });
    let handle = WorkerHandle { commands, window: Arc::clone(&window) };
    let driver = async move {
        let mut actions = Vec::new();
        let resend = if van.capability().reliable { Resend::Never } else { Resend::After(Duration::from_millis(200)) };
        let WorkerSettings { member, consistency, timeout, .. } = settings;
        let machine = WorkerNode::new(member, consistency, timeout, resend, now(), &mut actions);
        let application =
            Calls { commands: receiver, open: HashMap::new(), next_call: 0, joined: Some(joined), window: &window };
        drive(machine, actions, van, inbox, application).await
    };
    (handle, place, driver)
}

impl Window {
    fn end(&self, error: Error) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.calls.close();
        self.bytes.close();
    }
}

/// The application of a worker's driver.
struct Calls<'a> {
    commands: mpsc::Receiver<Command>,
    open: HashMap<CallId, Open>,
    next_call: u64,
    joined: Option<oneshot::Sender<Result<Joined, Error>>>,
    window: &'a Window,
}

impl Calls<'_> {
    fn open(&mut self, open: Open) -> CallId {
        self.next_call += 1;
        let call = CallId(self.next_call);
        self.open.insert(call, open);
        call
    }
}

impl Application<WorkerNode> for Calls<'_> {
    type Command = Command;

    async fn next(&mut self) -> Option<Command> {
        if self.joined.is_some() {
            // Nobody has the handle's place yet; a command now would only be refused.
            std::future::pending().await
        } else {
            self.commands.recv().await
        }
    }

    fn run(&mut self, machine: &mut WorkerNode, now: Instant, command: Command, out: &mut Vec<Action>) {
        match command {
            Command::Op(op, priority, open) => {
                let call = self.open(open);
                machine.submit(now, call, op, priority, out);
            }
            Command::Barrier(open) => {
                let call = self.open(open);
                machine.submit_barrier(now, call, out);
            }
        }
    }

    fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    fn abandoned(&mut self, machine: &mut WorkerNode, now: Instant, out: &mut Vec<Action>) {
        self.next_call += 1;
        machine.submit(now, CallId(self.next_call), Op::Leave, i32::MIN, out);
    }

    fn completed(&mut self, call: CallId, result: Result<Outcome, Error>) {
        if let Some(open) = self.open.remove(&call) {
            // Whoever dropped the handle does not want to know.
            let _ = open.done.send(result);
        }
    }

    fn joined(&mut self, place: Joined) {
        if let Some(joined) = self.joined.take() {
            let _ = joined.send(Ok(place));
        }
    }

    fn stopped(&mut self, result: &Result<(), Error>) {
        self.window.end(result.clone().err().unwrap_or(Error::Closed));
    }
}

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        // The driver was dropped before its end: whoever waits must learn it.
        self.window.end(Error::Closed);
    }
}
