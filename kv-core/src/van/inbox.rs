//! The receiving half of every van: one bounded queue of what arrived.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::VanError;
use crate::cluster::NodeId;
use crate::wire::Message;

/// Bounds of an inbox.
#[derive(Clone, Copy, Debug)]
pub struct InboxLimits {
    /// Events that may wait.
    pub events: usize,
    /// Bytes of message bodies that may wait. A single larger message is let in when it is alone.
    pub bytes: u32,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { events: 1024, bytes: 32 * 1024 * 1024 }
    }
}

/// Something a van has to tell.
#[derive(Debug)]
pub enum VanEvent {
    /// A message arrived.
    Message {
        /// Who sent it, as established by the van, not by the message.
        from: NodeId,
        /// The message.
        message: Message,
    },
    /// A peer's link is gone; said once per link, after its last message.
    PeerDown {
        /// The peer.
        node: NodeId,
        /// What was seen.
        reason: VanError,
    },
}

struct Queued {
    event: VanEvent,
    // Held until the event is taken out: this is what bounds the bytes.
    _bytes: Option<OwnedSemaphorePermit>,
}

/// The single consumer of a van's events.
pub struct Inbox {
    events: mpsc::Receiver<Queued>,
    scratch: Vec<Queued>,
}

/// The producing side, for the crates that implement vans. Cheap to clone.
#[derive(Clone)]
pub struct InboxSender {
    events: mpsc::Sender<Queued>,
    bytes: Arc<Semaphore>,
    bytes_max: u32,
}

/// Room for one message, reserved before its body is read, so that reading never outgrows the bound.
pub struct Reserved {
    bytes: Option<OwnedSemaphorePermit>,
}

impl Reserved {
    /// Room for an event without a body.
    #[must_use]
    pub fn nothing() -> Self {
        Self { bytes: None }
    }
}

impl Inbox {
    /// A new inbox and its producing side.
    #[must_use]
    pub fn new(limits: InboxLimits) -> (InboxSender, Self) {
        let (sender, events) = mpsc::channel(limits.events.max(1));
        let bytes_max = limits.bytes.max(1);
        let bytes = Arc::new(Semaphore::new(bytes_max as usize));
        (InboxSender { events: sender, bytes, bytes_max }, Self { events, scratch: Vec::new() })
    }

    /// The next event; `None` when the van is closed and everything was taken.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Option<VanEvent> {
        self.events.recv().await.map(|queued| queued.event)
    }

    /// Takes what is there, up to `limit` events, waiting only for the first. Returns how many were appended to
    /// `out`; 0 when the van is closed and everything was taken.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn recv_many(&mut self, out: &mut Vec<VanEvent>, limit: usize) -> usize {
        let count = self.events.recv_many(&mut self.scratch, limit).await;
        out.extend(self.scratch.drain(..).map(|queued| queued.event));
        count
    }
}

impl InboxSender {
    /// Waits for room for a message body of `bytes` bytes. Call it after the header, before the body is read.
    pub async fn reserve(&self, bytes: u64) -> Reserved {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max);
        if permits == 0 {
            return Reserved::nothing();
        }
        // The semaphore is never closed, so the only outcome is a permit.
        Reserved { bytes: Arc::clone(&self.bytes).acquire_many_owned(permits).await.ok() }
    }

    /// As [`InboxSender::reserve`] without waiting: `None` when there is no room now. Does not overtake those who wait.
    #[must_use]
    pub fn try_reserve(&self, bytes: u64) -> Option<Reserved> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max);
        match permits {
            0 => Some(Reserved::nothing()),
            _ => Some(Reserved { bytes: Some(Arc::clone(&self.bytes).try_acquire_many_owned(permits).ok()?) }),
        }
    }

    /// Delivers an event into reserved room, waiting while the queue is full. `false` when nobody will read it.
    ///
    /// # Cancel safety
    /// A dropped future has delivered the whole event or none of it.
    pub async fn deliver(&self, reserved: Reserved, event: VanEvent) -> bool {
        self.events.send(Queued { event, _bytes: reserved.bytes }).await.is_ok()
    }

    /// As [`InboxSender::deliver`] without waiting; gives both back when the queue is full, and `None` inside the error
    /// when nobody will ever read it.
    ///
    /// # Errors
    /// See above.
    pub fn try_deliver_reserved(
        &self,
        reserved: Reserved,
        event: VanEvent,
    ) -> Result<(), Option<(Reserved, VanEvent)>> {
        let queued = Queued { event, _bytes: reserved.bytes };
        self.events.try_send(queued).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(Queued { event, _bytes }) => Some((Reserved { bytes: _bytes }, event)),
            mpsc::error::TrySendError::Closed(_) => None,
        })
    }

    /// Reserves and delivers a message without waiting; gives the message back when there is no room, and `None`
    /// inside the error when nobody will ever read it.
    ///
    /// # Errors
    /// See above.
    pub fn try_deliver(&self, from: NodeId, message: Message) -> Result<(), Option<Message>> {
        let Some(reserved) = self.try_reserve(message.body_bytes()) else { return Err(Some(message)) };
        self.try_deliver_reserved(reserved, VanEvent::Message { from, message }).map_err(|refused| match refused {
            Some((_, VanEvent::Message { message, .. })) => Some(message),
            _ => None,
        })
    }

    /// Says without waiting that `node` went away, for a van that is dropped. When the queue is full a task of the
    /// current runtime says it as soon as there is room.
    pub(super) fn report_lost(&self, node: NodeId) {
        let reason = VanError::LinkLost { node, reason: "the peer is gone".to_owned() };
        let queued = Queued { event: VanEvent::PeerDown { node, reason }, _bytes: None };
        if let Err(mpsc::error::TrySendError::Full(queued)) = self.events.try_send(queued)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let events = self.events.clone();
            runtime.spawn(async move { events.send(queued).await });
        }
    }

    /// Whether the consumer is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }
}
