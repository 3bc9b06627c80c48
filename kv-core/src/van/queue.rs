//! The sending half of every van: one bounded queue per peer.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};

use crate::wire::Message;

/// Bounds of the queue to one peer.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Messages that may wait.
    pub messages: usize,
    /// Bytes of message bodies that may wait. A single larger message is let in when it is alone.
    pub bytes: u32,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { messages: 1024, bytes: 16 * 1024 * 1024 }
    }
}

/// A message that waits to be carried, with the room it takes until it is dropped.
#[derive(Debug)]
pub struct Outgoing {
    /// The message.
    pub message: Message,
    _room: Option<OwnedSemaphorePermit>,
}

/// The entry of a bounded queue of messages, for the crates that implement vans. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SendQueue {
    queue: mpsc::Sender<Outgoing>,
    room: Arc<Semaphore>,
    room_max: u32,
}

/// Why a queue did not take a message at once.
#[derive(Debug)]
pub enum NotQueued {
    /// There is no room; here is the message back.
    Full(Message),
    /// Nothing is taken any more.
    Closed,
}

impl SendQueue {
    /// A new queue and its far end.
    #[must_use]
    pub fn new(limits: QueueLimits) -> (Self, mpsc::Receiver<Outgoing>) {
        let (queue, queued) = mpsc::channel(limits.messages.max(1));
        let room_max = limits.bytes.max(1);
        (Self { queue, room: Arc::new(Semaphore::new(room_max as usize)), room_max }, queued)
    }

    /// Queues a message, waiting for room. `false` when the queue is closed.
    ///
    /// # Cancel safety
    /// A dropped future has queued the whole message or none of it.
    pub async fn send(&self, message: Message) -> bool {
        let room = match self.permits(&message) {
            0 => None,
            bytes => match Arc::clone(&self.room).acquire_many_owned(bytes).await {
                Ok(room) => Some(room),
                Err(_) => return false,
            },
        };
        self.queue.send(Outgoing { message, _room: room }).await.is_ok()
    }

    /// As [`SendQueue::send`] without waiting.
    ///
    /// # Errors
    /// [`NotQueued`].
    pub fn try_send(&self, message: Message) -> Result<(), NotQueued> {
        let room = match self.permits(&message) {
            0 => None,
            bytes => match Arc::clone(&self.room).try_acquire_many_owned(bytes) {
                Ok(room) => Some(room),
                Err(TryAcquireError::NoPermits) => return Err(NotQueued::Full(message)),
                Err(TryAcquireError::Closed) => return Err(NotQueued::Closed),
            },
        };
        self.queue.try_send(Outgoing { message, _room: room }).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(outgoing) => NotQueued::Full(outgoing.message),
            mpsc::error::TrySendError::Closed(_) => NotQueued::Closed,
        })
    }

    /// Lets nobody wait for room any more; what is queued stays queued.
    pub fn close(&self) {
        self.room.close();
    }

    fn permits(&self, message: &Message) -> u32 {
        u32::try_from(message.body_bytes()).unwrap_or(u32::MAX).min(self.room_max)
    }
}
