//! Who drives a worker's I/O: the thread that waits for it, or else a thread of the store.
//!
//! A blocking call drives the loop itself, so that nothing is handed over between threads while the call waits. While
//! the application computes, the keeper thread drives: heartbeats go out, and what was started goes on.
//!
//! ```text
//!   application   ──call──compute──call──call──call──compute ─ ─ ─ ─ ─ ─ ─ ──call
//!   loop driven by  app            app   app   app            keeper          app
//! ```

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;

use crate::spin::spinning;

/// How long after the last call the keeper takes over. A hand-over costs two wake-ups of a thread, so a loop of calls
/// keeps the keeper out; and this is how long the rest of a large push may wait when nobody waits for it.
const QUIET: Duration = Duration::from_micros(500);

/// A runtime of one thread at a time.
pub(crate) struct IoLoop {
    /// `None` once it is over.
    runtime: Mutex<Option<Arc<Runtime>>>,
    /// How long a call looks for its answer before it sleeps.
    spin: Duration,
    /// Calls that block now.
    callers: AtomicUsize,
    /// The keeper is driving.
    kept: AtomicBool,
    /// A call wants to drive.
    wanted: Notify,
    /// When the last call ended, and whether the loop is over.
    quiet: Mutex<Quiet>,
    changed: Condvar,
}

struct Quiet {
    since: Instant,
    over: bool,
}

impl IoLoop {
    pub(crate) fn new(runtime: Runtime, spin: Duration) -> Self {
        Self {
            runtime: Mutex::new(Some(Arc::new(runtime))),
            spin,
            callers: AtomicUsize::new(0),
            kept: AtomicBool::new(false),
            wanted: Notify::new(),
            quiet: Mutex::new(Quiet { since: Instant::now(), over: false }),
            changed: Condvar::new(),
        }
    }

    /// Blocks until `call` has ended.
    pub(crate) fn block_on<F: Future>(&self, call: F) -> F::Output {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A thread that drives another runtime cannot drive this one too.
        let Some(runtime) = runtime.filter(|_| Handle::try_current().is_err()) else { return pollster::block_on(call) };
        let _caller = Caller::enter(self);
        runtime.block_on(spinning(call, self.spin))
    }

    /// Drives the loop whenever no call does, until [`IoLoop::end`].
    pub(crate) fn keep(&self) {
        let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return };
        loop {
            self.kept.store(true, Ordering::SeqCst);
            // A caller that did not see the flag has been counted.
            if self.callers.load(Ordering::SeqCst) == 0 {
                runtime.block_on(self.wanted.notified());
            }
            self.kept.store(false, Ordering::SeqCst);
            let mut quiet = self.quiet();
            loop {
                if quiet.over {
                    return;
                }
                if self.callers.load(Ordering::SeqCst) == 0 && quiet.since.elapsed() >= QUIET {
                    break;
                }
                quiet = self.changed.wait_timeout(quiet, QUIET).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// The loop is over: the keeper returns.
    pub(crate) fn end(&self) {
        self.quiet().over = true;
        self.changed.notify_one();
        self.wanted.notify_one();
    }

    /// Lets go of the runtime; calls that still wait have been answered.
    pub(crate) fn close(&self) {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(runtime);
    }

    fn quiet(&self) -> MutexGuard<'_, Quiet> {
        // Nothing panics while it is held.
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that blocks.
struct Caller<'a>(&'a IoLoop);

impl<'a> Caller<'a> {
    fn enter(io: &'a IoLoop) -> Self {
        io.callers.fetch_add(1, Ordering::SeqCst);
        if io.kept.load(Ordering::SeqCst) {
            io.wanted.notify_one();
        }
        Self(io)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.quiet().since = Instant::now();
        self.0.callers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;
    use crate::node;

    fn spawn(io: &IoLoop, task: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
        let mut task = Some(task);
        io.block_on(poll_fn(|_| Poll::Ready(task.take().map(tokio::spawn)))).unwrap()
    }

    /// Calls of several threads and the keeper take turns; tasks of the loop run for all of them.
    #[test]
    fn calls_and_the_keeper_take_turns() {
        for spin in [Duration::ZERO, Duration::from_micros(50)] {
            let io = IoLoop::new(node::runtime().unwrap(), spin);
            let (send, mut receive) = tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<u32>>(4);
            let echo = async move {
                let mut count = 0;
                while let Some(answer) = receive.recv().await {
                    count += 1;
                    answer.send(count).unwrap();
                }
            };
            let echo = spawn(&io, echo);
            std::thread::scope(|scope| {
                scope.spawn(|| io.keep());
                let callers: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            for round in 0..300 {
                                let ask = async {
                                    let (answer, answered) = tokio::sync::oneshot::channel();
                                    send.send(answer).await.unwrap();
                                    answered.await.unwrap()
                                };
                                // Now and then by a thread that does not drive, so that the keeper has to.
                                if round % 50 == 49 {
                                    pollster::block_on(ask)
                                } else {
                                    io.block_on(ask)
                                };
                            }
                        })
                    })
                    .collect();
                callers.into_iter().for_each(|caller| caller.join().unwrap());
                io.end();
            });
            drop(send);
            io.block_on(echo).unwrap();
        }
    }

    #[test]
    fn a_call_within_another_runtime_is_left_to_the_keeper() {
        let io = IoLoop::new(node::runtime().unwrap(), Duration::ZERO);
        std::thread::scope(|scope| {
            scope.spawn(|| io.keep());
            let sleep = async { tokio::time::sleep(Duration::from_millis(1)).await };
            let task = spawn(&io, sleep);
            node::runtime().unwrap().block_on(async { io.block_on(task) }).unwrap();
            io.end();
        });
    }
}
