//! What could not be handed to the van at once.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;

use crate::cluster::NodeId;
use crate::limits::UNANSWERED_REQUESTS_MAX;
use crate::van::{TrySendError, Van, VanError};
use crate::wire::Message;

/// Messages kept for one peer. What the machines say to a correct peer stays far below: each answers a request, of
/// which only so many may be unanswered. A peer that asks without ever reading answers loses the newest ones.
const KEPT_MAX: usize = 4 * UNANSWERED_REQUESTS_MAX as usize;

/// Per-peer queues in front of the van. At most one waiting `send` per peer keeps their order.
pub(super) struct Outbox {
    van: Arc<dyn Van>,
    queues: HashMap<NodeId, VecDeque<Message>>,
    sending: FuturesUnordered<BoxFuture<'static, (NodeId, Result<(), VanError>)>>,
}

impl Outbox {
    pub(super) fn new(van: Arc<dyn Van>) -> Self {
        Self { van, queues: HashMap::new(), sending: FuturesUnordered::new() }
    }

    /// Hands the message to the van, or keeps it until there is room. Never waits.
    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        if let Some(queue) = self.queues.get_mut(&to) {
            if queue.len() < KEPT_MAX {
                queue.push_back(message);
            } else {
                tracing::warn!(%to, "dropped a message for a peer that does not read");
            }
            return;
        }
        match self.van.try_send(to, message) {
            Ok(()) => {}
            Err(TrySendError::Full(message)) => {
                self.queues.insert(to, VecDeque::new());
                self.wait(to, message);
            }
            // The van reports a lost link by itself, and whoever is concerned acts on that.
            Err(TrySendError::Failed(error)) => tracing::debug!(%to, %error, "a message was not sent"),
        }
    }

    /// Waits until a full link has taken a message; `None` when nothing waits.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn progress(&mut self) -> Option<()> {
        let (to, result) = self.sending.next().await?;
        if let Err(error) = result {
            tracing::debug!(%to, %error, "messages were not sent");
            self.queues.remove(&to);
            return Some(());
        }
        while let Some(message) = self.queues.get_mut(&to).and_then(VecDeque::pop_front) {
            match self.van.try_send(to, message) {
                Ok(()) => {}
                Err(TrySendError::Full(message)) => {
                    self.wait(to, message);
                    return Some(());
                }
                Err(TrySendError::Failed(error)) => {
                    tracing::debug!(%to, %error, "messages were not sent");
                    break;
                }
            }
        }
        self.queues.remove(&to);
        Some(())
    }

    /// Drops what is kept for a peer that is gone.
    pub(super) fn forget(&mut self, peer: NodeId) {
        if let Some(queue) = self.queues.get_mut(&peer) {
            queue.clear();
        }
    }

    fn wait(&self, to: NodeId, message: Message) {
        let van = Arc::clone(&self.van);
        self.sending.push(Box::pin(async move { (to, van.send(to, message).await) }));
    }
}
