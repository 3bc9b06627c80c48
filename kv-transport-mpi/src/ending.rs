//! The end of MPI, and then the end of the process.

use std::sync::{Condvar, Mutex, PoisonError};

use tokio::task::JoinHandle;

use crate::world::World;

/// The task that does the work of this process's van.
static TASK: Mutex<Option<JoinHandle<Option<World>>>> = Mutex::new(None);

pub(crate) fn begin(task: JoinHandle<Option<World>>) {
    *TASK.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
}

/// Ends MPI after the van of [`MpiVan::bind`](crate::MpiVan::bind) was closed, on the thread that polls this last:
/// the standard wants the one that started it. Waits until all other ranks are as far. Does nothing when there is no
/// van, or when it was dropped without being closed.
///
/// # Cancel safety
/// A dropped future leaves MPI started.
pub async fn end() {
    let task = TASK.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(task) = task
        && let Ok(Some(mut world)) = task.await
    {
        world.finish();
    }
}

/// Threads that are leaving the MPI world.
static LEAVING: Mutex<usize> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

/// Held by a thread from when it begins to leave the MPI world until it has.
pub(crate) struct Leaving(());

impl Leaving {
    /// From now on the process does not exit before this is dropped: a rank that exits without having ended MPI makes
    /// the launcher kill the others.
    pub(crate) fn begin() -> Self {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            // SAFETY: `at_exit` is a function that lives as long as the process, and does not unwind. Registered after
            // MPI has started, it runs before anything that MPI does at exit.
            if unsafe { libc::atexit(at_exit) } != 0 {
                tracing::warn!("the end of this process cannot wait for the end of MPI");
            }
        });
        *LEAVING.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        *LEAVING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        LEFT.notify_all();
    }
}

/// Waits until every thread that has begun to leave the MPI world has left it; it has when all other ranks leave too.
/// The end of the process does the same by itself.
pub fn wait_for_the_end() {
    let leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    drop(LEFT.wait_while(leaving, |leaving| *leaving > 0).unwrap_or_else(PoisonError::into_inner));
}

extern "C" fn at_exit() {
    wait_for_the_end();
}
