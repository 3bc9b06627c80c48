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
    nodes: Arc<Mutex<Nodes>>,
}

#[derive(Default)]
struct Nodes {
    by_id: HashMap<NodeId, Node>,
    /// Nodes that are known by a name as well.
    names: HashMap<String, NodeId>,
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
        self.add(node, None, limits)
    }

    /// Adds a node that others can find without having heard of its identity: its endpoint is [`MemoryHub::named`].
    /// The name is free again when the node is gone.
    ///
    /// # Errors
    /// [`VanError::Bind`] when that identity or that name is taken.
    pub fn bind_named(&self, node: NodeId, name: &str, limits: InboxLimits) -> Result<(MemoryVan, Inbox), VanError> {
        self.add(node, Some(name), limits)
    }

    /// The endpoint of the node with this name, whether or not there is one now.
    #[must_use]
    pub fn named(name: &str) -> Endpoint {
        Endpoint(format!("{SCHEME}{name}"))
    }

    fn add(&self, node: NodeId, name: Option<&str>, limits: InboxLimits) -> Result<(MemoryVan, Inbox), VanError> {
        let endpoint = Self::named(&name.map_or_else(|| node.to_string(), str::to_owned));
        let (sender, inbox) = Inbox::new(limits);
        let mut nodes = self.nodes();
        if nodes.by_id.contains_key(&node) {
            return Err(VanError::Bind { endpoint, reason: "the identity is taken".to_owned() });
        }
        if let Some(name) = name {
            if nodes.names.contains_key(name) {
                return Err(VanError::Bind { endpoint, reason: "another node has this name".to_owned() });
            }
            nodes.names.insert(name.to_owned(), node);
        }
        nodes.by_id.insert(node, Node { inbox: sender, peers: Vec::new() });
        Ok((MemoryVan { node, endpoint, hub: self.clone(), closed: AtomicBool::new(false) }, inbox))
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        // No code panics while holding this lock; a poisoned map is still a whole map.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Links a node with the one at an endpoint, and returns who that is when there is one.
    fn link(&self, from: NodeId, to: &str) -> Option<NodeId> {
        let mut nodes = self.nodes();
        let by_id = || u64::from_str_radix(to, 16).ok().map(NodeId);
        let to = nodes.names.get(to).copied().or_else(by_id).filter(|to| nodes.by_id.contains_key(to))?;
        for (node, peer) in [(from, to), (to, from)] {
            if let Some(node) = nodes.by_id.get_mut(&node)
                && !node.peers.contains(&peer)
            {
                node.peers.push(peer);
            }
        }
        Some(to)
    }

    /// Takes the node out and returns the inboxes of those that must hear of it.
    fn unlink(&self, node: NodeId) -> Vec<InboxSender> {
        let mut nodes = self.nodes();
        let Some(gone) = nodes.by_id.remove(&node) else { return Vec::new() };
        nodes.names.retain(|_, named| *named != node);
        let peers = gone.peers.into_iter().filter(|&peer| peer != node);
        peers
            .filter_map(|peer| {
                let peer = nodes.by_id.get_mut(&peer)?;
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
        let linked = to == self.node || nodes.by_id.get(&self.node).is_some_and(|me| me.peers.contains(&to));
        match nodes.by_id.get(&to) {
            Some(peer) if linked => Ok(peer.inbox.clone()),
            _ => Err(VanError::UnknownPeer(to)),
        }
    }

    fn parse(endpoint: &Endpoint) -> Result<&str, VanError> {
        let expected = "mem://NODE or mem://NAME";
        let node = endpoint.0.strip_prefix(SCHEME).filter(|node| !node.is_empty());
        node.ok_or_else(|| VanError::UnsupportedEndpoint { endpoint: endpoint.clone(), expected })
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
        let reason = "no such node in this process".to_owned();
        let missing = || VanError::Unreachable { endpoint: endpoint.clone(), reason };
        self.hub.link(self.node, to).ok_or_else(missing)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_belongs_to_one_node_and_is_free_after_it() {
        let hub = MemoryHub::new();
        let limits = InboxLimits::default;
        let (other, _other_inbox) = hub.bind(NodeId(7), limits()).unwrap();
        let job = MemoryHub::named("job");
        assert!(matches!(other.connect(&job).await, Err(VanError::Unreachable { .. })));
        for id in [1, 2] {
            let (van, _inbox) = hub.bind_named(NodeId(id), "job", limits()).unwrap();
            assert_eq!(van.endpoint(), &job);
            assert_eq!(other.connect(&job).await.unwrap(), NodeId(id));
            let second = hub.bind_named(NodeId(3), "job", limits()).map(drop);
            assert!(matches!(second, Err(VanError::Bind { .. })), "{second:?}");
            // Neither the name nor the identity of the one that was refused is taken.
            hub.bind(NodeId(3), limits()).unwrap();
            match id {
                1 => drop(van),
                _ => van.close().await.unwrap(),
            }
            assert!(matches!(other.connect(&job).await, Err(VanError::Unreachable { .. })));
        }
    }
}
