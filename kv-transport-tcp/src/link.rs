//! The connection to one peer: the sending side of its queue, and its end.

use std::sync::{Arc, OnceLock};

use kv_core::cluster::NodeId;
use kv_core::van::{NotQueued, Outgoing, QueueLimits, SendQueue, TrySendError, VanError};
use kv_core::wire::Message;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;

/// The connection to one peer. Two tasks drive it: the writer empties the queue, the reader fills the inbox and sees
/// to the end.
pub(crate) struct Link {
    pub(crate) node: NodeId,
    queue: SendQueue,
    /// Why the link was lost; set once, and from then on nothing can be sent.
    lost: OnceLock<String>,
    /// Asks the reader to end without waiting for the peer.
    give_up: Notify,
    /// What became of it, once the reader is through and has reported the peer.
    ended: watch::Sender<Option<Result<(), VanError>>>,
    tasks: OnceLock<[AbortHandle; 2]>,
}

impl Link {
    pub(crate) fn new(node: NodeId, limits: QueueLimits) -> (Arc<Self>, mpsc::Receiver<Outgoing>) {
        let (queue, queued) = SendQueue::new(limits);
        let link = Self {
            node,
            queue,
            lost: OnceLock::new(),
            give_up: Notify::new(),
            ended: watch::Sender::new(None),
            tasks: OnceLock::new(),
        };
        (Arc::new(link), queued)
    }

    /// Remembers the tasks, to be stopped with the van.
    pub(crate) fn driven_by(&self, tasks: [AbortHandle; 2]) {
        // Called once, where the tasks are spawned.
        let _ = self.tasks.set(tasks);
    }

    /// # Cancel safety
    /// A dropped future has queued the whole message or none of it.
    pub(crate) async fn send(&self, message: Message) -> Result<(), VanError> {
        if self.queue.send(message).await { Ok(()) } else { Err(self.gone()) }
    }

    pub(crate) fn try_send(&self, message: Message) -> Result<(), TrySendError> {
        self.queue.try_send(message).map_err(|refused| match refused {
            NotQueued::Full(message) => TrySendError::Full(message),
            NotQueued::Closed => TrySendError::Failed(self.gone()),
        })
    }

    fn gone(&self) -> VanError {
        self.lost_as().unwrap_or(VanError::Closed)
    }

    /// Why the link was lost, if it was.
    pub(crate) fn lost_as(&self) -> Option<VanError> {
        self.lost.get().map(|reason| VanError::LinkLost { node: self.node, reason: reason.clone() })
    }

    pub(crate) fn is_live(&self) -> bool {
        self.lost.get().is_none()
    }

    /// From now on nothing can be sent and those who wait for room are told. The first reason counts.
    pub(crate) fn lose(&self, reason: impl Into<String>) {
        let _ = self.lost.set(reason.into());
        self.queue.close();
    }

    /// Lets nobody wait for room any more; what is queued is still written.
    pub(crate) fn accept_no_more(&self) {
        self.queue.close();
    }

    /// Gives the link up; its end is reported as usual.
    pub(crate) fn give_up(&self, reason: &str) {
        self.lose(reason);
        self.give_up.notify_one();
    }

    pub(crate) async fn given_up(&self) {
        self.give_up.notified().await;
    }

    pub(crate) fn end(&self, outcome: Result<(), VanError>) {
        self.ended.send_replace(Some(outcome));
    }

    /// Waits until the link is over and its end was reported.
    pub(crate) async fn ended(&self) -> Result<(), VanError> {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as `self`.
        ended.wait_for(Option::is_some).await.map_or(Ok(()), |outcome| outcome.clone().unwrap_or(Ok(())))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Stops at once, like a process that died.
    pub(crate) fn abort(&self) {
        self.lose("this node's van was dropped");
        for task in self.tasks.get().into_iter().flatten() {
            task.abort();
        }
    }
}
