//! A worker's place in a running job: one background thread that owns its connections.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kv_core::cluster::Role;
use kv_core::driver::{WorkerHandle, WorkerSettings, start_worker};
use kv_core::machine::Joined;
use kv_core::{Consistency, Error};
use tokio::sync::oneshot;

use crate::config::NodeConfig;
use crate::node;

/// The thread and the handle to it.
pub(crate) struct Session {
    handle: Option<WorkerHandle>,
    place: Joined,
    /// Ends the thread as if the process had died.
    abort: Option<oneshot::Sender<()>>,
    /// Hears of the thread's end, in a `drop`.
    ended: Mutex<Receiver<()>>,
    /// Hears of it where one can await.
    closed: Mutex<Option<oneshot::Receiver<()>>>,
}

/// How long a dropped store may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

impl Session {
    /// Joins the job; returns when everybody is there.
    pub(crate) fn open(config: NodeConfig, consistency: Consistency) -> Result<Self, Error> {
        let (started, start) = sync_channel(1);
        let (abort, aborted) = oneshot::channel();
        let (end, ended) = sync_channel(1);
        let (close, closed) = oneshot::channel();
        let thread = std::thread::Builder::new().name("kv-worker".to_owned());
        let spawned = thread.spawn(move || {
            run(config, consistency, &|result| drop(started.send(result)), aborted);
            // Nobody listens when the store was forgotten.
            let _ = end.try_send(());
            let _ = close.send(());
        });
        spawned.map_err(|error| Error::Config(format!("cannot start a thread: {error}")))?;
        let (handle, place) = start.recv().unwrap_or(Err(Error::Closed))?;
        let (ended, closed) = (Mutex::new(ended), Mutex::new(Some(closed)));
        Ok(Self { handle: Some(handle), place, abort: Some(abort), ended, closed })
    }

    pub(crate) fn handle(&self) -> Result<&WorkerHandle, Error> {
        self.handle.as_ref().ok_or(Error::Closed)
    }

    pub(crate) fn place(&self) -> Joined {
        self.place
    }

    /// Waits for the thread after the goodbye was said: it only delivers what it has still to say, and has a deadline
    /// for that.
    pub(crate) async fn closed(&self) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(closed) = closed {
            // An error means that the thread is gone as well.
            let _ = closed.await;
        }
    }

    fn wait_for_end(&self) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.recv_timeout(GOODBYE) != Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The others must learn that this worker failed, not that it finished. The handle goes last: a driver that
            // sees it gone before it hears of the abort says goodbye.
            self.abort.take().map(|abort| abort.send(()));
            self.wait_for_end();
            return;
        }
        // Without a handle the driver leaves the job.
        self.handle = None;
        if !self.wait_for_end() {
            tracing::warn!("a dropped store could not say goodbye to its job");
            self.abort.take().map(|abort| abort.send(()));
        }
    }
}

/// The thread: its own runtime, its van, its driver.
fn run(
    config: NodeConfig,
    consistency: Consistency,
    started: &dyn Fn(Result<(WorkerHandle, Joined), Error>),
    mut aborted: oneshot::Receiver<()>,
) {
    let runtime = match node::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return started(Err(error)),
    };
    runtime.block_on(async {
        let (member, van, inbox) = match node::join(&config, Role::Worker).await {
            Ok(joined) => joined,
            Err(error) => return started(Err(error)),
        };
        let window = config.window;
        let settings = WorkerSettings { member, consistency, timeout: config.timeout, window };
        let (handle, place, driver) = start_worker(settings, van, inbox);
        tokio::pin!(driver);
        // The driver has to run for the place to come.
        let place = tokio::select! {
            place = place => place.unwrap_or(Err(Error::Closed)),
            result = &mut driver => return started(Err(result.err().unwrap_or(Error::Closed))),
        };
        started(place.map(|place| (handle, place)));
        tokio::select! {
            result = &mut driver => {
                if let Err(error) = result {
                    tracing::debug!(%error, "the worker's driver ended");
                }
            }
            Ok(()) = &mut aborted => {}
        }
    });
}
