//! A worker's place in a running job.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kv_core::cluster::Role;
use kv_core::driver::{WorkerHandle, WorkerSettings, start_worker};
use kv_core::machine::Joined;
use kv_core::{Consistency, Error};
use tokio::sync::oneshot;

use crate::config::NodeConfig;
use crate::io_loop::IoLoop;
use crate::node;
use crate::transport;

/// The worker's I/O and the handle to it.
pub(crate) struct Session {
    handle: Option<WorkerHandle>,
    place: Joined,
    io: Arc<IoLoop>,
    /// Ends the worker as if the process had died.
    abort: Option<oneshot::Sender<()>>,
    /// Hears of the worker's end, in a `drop`.
    ended: Mutex<Receiver<()>>,
    /// Hears of it where one can await.
    closed: Mutex<Option<oneshot::Receiver<()>>>,
}

/// How long a dropped store may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

impl Session {
    /// Joins the job; returns when everybody is there.
    pub(crate) fn open(config: NodeConfig, consistency: Consistency) -> Result<Self, Error> {
        let io = Arc::new(IoLoop::new(node::runtime()?, config.spin));
        let (started, start) = sync_channel(1);
        let (abort, aborted) = oneshot::channel();
        let (end, ended) = sync_channel(1);
        let (close, closed) = oneshot::channel();
        let (keeper, over) = (Arc::clone(&io), Arc::clone(&io));
        let at_end = move || {
            // Nobody listens when the store was forgotten.
            let _ = end.try_send(());
            let _ = close.send(());
            over.end();
        };
        let thread = std::thread::Builder::new().name("kv-keeper".to_owned());
        let spawned = thread.spawn(move || {
            let joined = keeper.block_on(join(config, consistency, aborted, at_end));
            let has_joined = joined.is_ok();
            drop(started.send(joined));
            if has_joined {
                keeper.keep();
                keeper.block_on(transport::end());
            }
            keeper.close();
        });
        spawned.map_err(|error| Error::Config(format!("cannot start a thread: {error}")))?;
        let (handle, place) = start.recv().unwrap_or(Err(Error::Closed))?;
        let (ended, closed) = (Mutex::new(ended), Mutex::new(Some(closed)));
        Ok(Self { handle: Some(handle), place, io, abort: Some(abort), ended, closed })
    }

    pub(crate) fn handle(&self) -> Result<&WorkerHandle, Error> {
        self.handle.as_ref().ok_or(Error::Closed)
    }

    pub(crate) fn io(&self) -> &Arc<IoLoop> {
        &self.io
    }

    pub(crate) fn place(&self) -> Joined {
        self.place
    }

    /// Waits for the worker's end after the goodbye was said: it only delivers what it has still to say, and has a
    /// deadline for that.
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

/// Joins the job, and leaves behind a task that is the worker until its end.
async fn join(
    config: NodeConfig,
    consistency: Consistency,
    mut aborted: oneshot::Receiver<()>,
    at_end: impl FnOnce() + Send + 'static,
) -> Result<(WorkerHandle, Joined), Error> {
    let (member, van, inbox) = node::join(&config, Role::Worker).await?;
    let settings = WorkerSettings { member, consistency, timeout: config.timeout, window: config.window };
    let (handle, place, driver) = start_worker(settings, van, inbox);
    let mut driver = Box::pin(driver);
    // The driver has to run for the place to come.
    let place = tokio::select! {
        place = place => place.unwrap_or(Err(Error::Closed))?,
        result = &mut driver => return Err(result.err().unwrap_or(Error::Closed)),
    };
    tokio::spawn(async move {
        tokio::select! {
            result = &mut driver => {
                if let Err(error) = result {
                    tracing::debug!(%error, "the worker's driver ended");
                }
            }
            Ok(()) = &mut aborted => {}
        }
        // Before anybody hears of the end.
        drop(driver);
        at_end();
    });
    Ok((handle, place))
}
