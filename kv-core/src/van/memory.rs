//! The reference van: nodes of one process exchange messages by reference.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Capability, Endpoint, Inbox, InboxLimits, InboxSender, TrySendError, Van, VanError, VanEvent};
use crate::cluster::NodeId;
use crate::wire::Message;

/// The "network" that memory vans meet in. Several hubs may exist side by side; they do not see each other.
#[derive(Clone, Default)]
pub struct MemoryHub {
    nodes: Arc<Mutex<HashMap<NodeId, Node>>>,
}

struct Node {
    inbox: InboxSender,
    /// Peers that have a link with this node and must be told when it goes.
    peers: Vec<NodeId>,
}

/// A van of one process; the model for the others, always available.
pub struct MemoryVan {
    node: NodeId,
    endpoint: Endpoint,
    hub: MemoryHub,
    closed: AtomicBool,
}

/// Form of a memory van's address.
const SCHEME: &str = "mem://";

impl MemoryHub {
    /// An empty hub.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node with the identity `node`.
    ///
    /// # Errors
    /// [`VanError::Bind`] when that identity is taken.
    pub fn bind(&self, node: NodeId, limits: InboxLimits) -> Result<(MemoryVan, Inbox), VanError> {
        let endpoint = Endpoint(format!("{SCHEME}{node}"));
        let (sender, inbox) = Inbox::new(limits);
        let mut nodes = self.nodes();
        if nodes.contains_key(&node) {
            return Err(VanError::Bind { endpoint, reason: "the identity is taken".to_owned() });
        }
        nodes.insert(node, Node { inbox: sender, peers: Vec::new() });
        Ok((MemoryVan { node, endpoint, hub: self.clone(), closed: AtomicBool::new(false) }, inbox))
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Node>> {
        // No code panics while holding this lock; a poisoned map is still a whole map.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, from: NodeId, to: NodeId) -> bool {
        let mut nodes = self.nodes();
        if !nodes.contains_key(&to) {
            return false;
        }
        for (node, peer) in [(from, to), (to, from)] {
            if let Some(node) = nodes.get_mut(&node)
                && !node.peers.contains(&peer)
            {
                node.peers.push(peer);
            }
        }
        true
    }

    /// Takes the node out and returns the inboxes of those that must hear of it.
    fn unlink(&self, node: NodeId) -> Vec<InboxSender> {
        let mut nodes = self.nodes();
        let Some(gone) = nodes.remove(&node) else { return Vec::new() };
        let peers = gone.peers.into_iter().filter(|&peer| peer != node);
        peers
            .filter_map(|peer| {
                let peer = nodes.get_mut(&peer)?;
                peer.peers.retain(|&other| other != node);
                Some(peer.inbox.clone())
            })
            .collect()
    }
}

impl MemoryVan {
    fn target(&self, to: NodeId) -> Result<InboxSender, VanError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(VanError::Closed);
        }
        let nodes = self.hub.nodes();
        let linked = to == self.node || nodes.get(&self.node).is_some_and(|me| me.peers.contains(&to));
        match nodes.get(&to) {
            Some(peer) if linked => Ok(peer.inbox.clone()),
            _ => Err(VanError::UnknownPeer(to)),
        }
    }

    fn parse(endpoint: &Endpoint) -> Result<NodeId, VanError> {
        let id = endpoint.0.strip_prefix(SCHEME).and_then(|id| u64::from_str_radix(id, 16).ok());
        id.map(NodeId)
            .ok_or_else(|| VanError::UnsupportedEndpoint { endpoint: endpoint.clone(), expected: "mem://NODE" })
    }
}

#[async_trait]
impl Van for MemoryVan {
    fn node(&self) -> NodeId {
        self.node
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn capability(&self) -> Capability {
        Capability {
            part_bytes_max: u64::MAX,
            dynamic_peers: true,
            reports_peer_down: true,
            public_port: false,
            reliable: true,
        }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<NodeId, VanError> {
        let to = Self::parse(endpoint)?;
        if self.closed.load(Ordering::Acquire) {
            return Err(VanError::Closed);
        }
        if self.hub.link(self.node, to) {
            Ok(to)
        } else {
            Err(VanError::Unreachable { endpoint: endpoint.clone(), reason: "no such node in this hub".to_owned() })
        }
    }

    async fn send(&self, to: NodeId, message: Message) -> Result<(), VanError> {
        let inbox = self.target(to)?;
        let reserved = inbox.reserve(message.body_bytes()).await;
        if inbox.deliver(reserved, VanEvent::Message { from: self.node, message }).await {
            Ok(())
        } else {
            Err(VanError::UnknownPeer(to))
        }
    }

    fn try_send(&self, to: NodeId, message: Message) -> Result<(), TrySendError> {
        let inbox = self.target(to).map_err(TrySendError::Failed)?;
        inbox.try_deliver(self.node, message).map_err(|refused| match refused {
            Some(message) => TrySendError::Full(message),
            None => TrySendError::Failed(VanError::UnknownPeer(to)),
        })
    }

    async fn close(&self) -> Result<(), VanError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        for inbox in self.hub.unlink(self.node) {
            let reason = VanError::LinkLost { node: self.node, reason: "the peer closed its van".to_owned() };
            let reserved = inbox.reserve(0).await;
            inbox.deliver(reserved, VanEvent::PeerDown { node: self.node, reason }).await;
        }
        Ok(())
    }
}

impl Drop for MemoryVan {
    fn drop(&mut self) {
        // Not closed: like a process that died. The peers hear of it as far as their inboxes have room.
        for inbox in self.hub.unlink(self.node) {
            inbox.report_lost(self.node);
        }
    }
}
