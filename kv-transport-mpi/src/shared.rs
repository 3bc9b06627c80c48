//! What the van's callers and its engine share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kv_core::cluster::NodeId;
use kv_core::van::{Endpoint, InboxSender, SendQueue, VanError};
use tokio::sync::{Notify, watch};

/// Form of an address.
pub(crate) const SCHEME: &str = "mpi://";

/// The identity of a rank: it lives as long as the world.
pub(crate) fn node_of(rank: usize) -> NodeId {
    NodeId(rank as u64 + 1)
}

pub(crate) struct Shared {
    pub(crate) rank: usize,
    pub(crate) endpoint: Endpoint,
    pub(crate) part_bytes_max: u64,
    /// The own one stands there too, and is not used.
    pub(crate) peers: Vec<PeerQueue>,
    /// Some peer's flag is up.
    bell: AtomicBool,
    /// Wakes the engine.
    wake: Notify,
    /// The own inbox, for what this node sends to itself; `None` once closed.
    inbox: Mutex<Option<InboxSender>>,
    pub(crate) closing: AtomicBool,
    /// How closing ended, once it has.
    pub(crate) closed: watch::Sender<Option<Result<(), VanError>>>,
    /// Why MPI cannot be used any more.
    failed: OnceLock<String>,
}

pub(crate) struct PeerQueue {
    pub(crate) queue: SendQueue,
    /// Something was queued since the flag was last taken down.
    flag: AtomicBool,
}

impl PeerQueue {
    pub(crate) fn new(queue: SendQueue) -> Self {
        Self { queue, flag: AtomicBool::new(false) }
    }
}

impl Shared {
    pub(crate) fn new(rank: usize, part_bytes_max: u64, peers: Vec<PeerQueue>, inbox: InboxSender) -> Self {
        Self {
            rank,
            endpoint: Endpoint(format!("{SCHEME}{rank}")),
            part_bytes_max,
            peers,
            bell: AtomicBool::new(false),
            wake: Notify::new(),
            inbox: Mutex::new(Some(inbox)),
            closing: AtomicBool::new(false),
            closed: watch::Sender::new(None),
            failed: OnceLock::new(),
        }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Option<InboxSender>> {
        // Nothing panics while it is held.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was queued for this rank.
    pub(crate) fn ring(&self, rank: usize) {
        self.peers[rank].flag.store(true, Ordering::Release);
        self.bell.store(true, Ordering::Release);
    }

    /// Whether anything was queued since the last call.
    pub(crate) fn take_bell(&self) -> bool {
        // The load alone is what a quiet turn costs.
        self.bell.load(Ordering::Relaxed) && self.bell.swap(false, Ordering::Acquire)
    }

    pub(crate) fn take_flag(&self, rank: usize) -> bool {
        self.peers[rank].flag.load(Ordering::Relaxed) && self.peers[rank].flag.swap(false, Ordering::Acquire)
    }

    /// Wakes the engine.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Nothing can be sent any more, and a close that has not ended fails. The first reason counts.
    pub(crate) fn fail(&self, reason: String) {
        let lost = VanError::LinkLost { node: node_of(self.rank), reason: reason.clone() };
        // What was closed in good order does not fail any more.
        let fails = self.closed.send_if_modified(|closed| {
            let open = closed.is_none();
            closed.get_or_insert(Err(lost));
            open
        });
        if fails {
            let _ = self.failed.set(reason);
        }
        self.peers.iter().for_each(|peer| peer.queue.close());
        *self.inbox() = None;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// What a queue that takes nothing any more means for this peer.
    pub(crate) fn gone(&self, rank: usize) -> VanError {
        match self.failed.get() {
            Some(reason) => VanError::LinkLost { node: node_of(rank), reason: reason.clone() },
            None => VanError::Closed,
        }
    }
}
