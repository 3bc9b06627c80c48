//! The seam to the transports: a van carries opaque messages between nodes, and nothing else.
//!
//! A van knows no keys, ranks, barriers, heartbeats or resends; those are the machines' business. Receiving is not a
//! trait method: every transport crate's `bind` returns its van together with a concrete, bounded [`Inbox`], which
//! also reports lost peers.

mod inbox;
mod memory;
mod queue;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::cluster::NodeId;
use crate::wire::Message;

pub use inbox::{Inbox, InboxLimits, InboxSender, Reserved, VanEvent};
pub use memory::{MemoryHub, MemoryVan};
pub use queue::{NotQueued, Outgoing, QueueLimits, SendQueue};

/// Text address of a node's van, understood only by the kind of van that made it: `tcp://10.0.0.7:9100`, `mem://3`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Endpoint(pub String);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Endpoint {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Endpoint {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// What a van can do. Callers and tests read this instead of knowing vans by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Largest part it carries, in bytes.
    pub part_bytes_max: u64,
    /// Whether nodes may come and go while it runs (not under MPI).
    pub dynamic_peers: bool,
    /// Whether it notices by itself that a peer is gone; else only heartbeats do.
    pub reports_peer_down: bool,
    /// Whether strangers can send bytes at it.
    pub public_port: bool,
    /// Whether every message accepted by `send` arrives once and in order while the link lives. When not, the
    /// machines resend.
    pub reliable: bool,
}

/// Carries messages between nodes.
///
/// The contract, checked for every van by the conformance suite of `kv-testkit`:
///
/// - messages arrive byte-identical, each part aligned to 8 bytes where the capability of the medium allows it;
/// - messages from one node to another arrive in the order in which they were queued;
/// - a peer that does not drain its inbox slows its senders down, and nobody else;
/// - memory is bounded: a full link makes `send` wait;
/// - `close` delivers what was queued before it.
#[async_trait]
pub trait Van: Send + Sync + 'static {
    /// This node's identity.
    fn node(&self) -> NodeId;

    /// What others pass to [`Van::connect`] to reach this node.
    fn endpoint(&self) -> &Endpoint;

    /// What this van can do.
    fn capability(&self) -> Capability;

    /// Opens a link to the node at `endpoint` and returns its identity. Idempotent: an existing link is used. When
    /// both sides connect at once, one link results.
    ///
    /// # Errors
    /// [`VanError::Unreachable`], [`VanError::Refused`], [`VanError::UnsupportedEndpoint`], [`VanError::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves either no link or a complete one.
    async fn connect(&self, endpoint: &Endpoint) -> Result<NodeId, VanError>;

    /// Queues `message` for `to`; waits while the link is full. Resolves when it is queued, not when it has arrived.
    ///
    /// # Errors
    /// [`VanError::UnknownPeer`] when there is no link, [`VanError::TooLarge`], [`VanError::Closed`].
    ///
    /// # Cancel safety
    /// A dropped future has queued the whole message or none of it.
    async fn send(&self, to: NodeId, message: Message) -> Result<(), VanError>;

    /// As [`Van::send`] but never waits: a full link gives the message back.
    ///
    /// # Errors
    /// [`TrySendError::Full`] with the message, or the errors of [`Van::send`].
    fn try_send(&self, to: NodeId, message: Message) -> Result<(), TrySendError>;

    /// Looks for what arrives, for a moment and without giving the thread back, where handing it back takes longer than
    /// most answers. Returns whether anything happened. Elsewhere it does nothing.
    fn look(&self) -> bool {
        false
    }

    /// Delivers what was queued, then refuses further sends and links. Idempotent.
    ///
    /// # Errors
    /// [`VanError::LinkLost`] when something queued could not be delivered.
    async fn close(&self) -> Result<(), VanError>;
}

/// Why a message was not taken at once.
#[derive(Debug)]
pub enum TrySendError {
    /// The link is full; here is the message back.
    Full(Message),
    /// It can not be sent at all.
    Failed(VanError),
}

/// What a transport can fail with; variants are named by what the caller can do about them.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VanError {
    /// Nobody answers there (yet): try again later, or give up and say the address.
    #[error("cannot reach {endpoint}: {reason}")]
    Unreachable {
        /// The address tried.
        endpoint: Endpoint,
        /// What the operating system or the peer said.
        reason: String,
    },
    /// The peer answered and does not want us; trying again will not help.
    #[error("{endpoint} refused the connection: {reason}")]
    Refused {
        /// The address tried.
        endpoint: Endpoint,
        /// The peer's reason.
        reason: String,
    },
    /// No address to listen on.
    #[error("cannot listen on {endpoint}: {reason}")]
    Bind {
        /// The address asked for.
        endpoint: Endpoint,
        /// What the operating system said.
        reason: String,
    },
    /// There is no link to this node.
    #[error("no link to node {0}")]
    UnknownPeer(NodeId),
    /// An address this van does not understand.
    #[error("this van does not understand the address '{endpoint}'; it takes {expected}")]
    UnsupportedEndpoint {
        /// The address given.
        endpoint: Endpoint,
        /// The form it takes.
        expected: &'static str,
    },
    /// A part larger than the van carries.
    #[error("a message part of {bytes} bytes; this van carries at most {bytes_max}")]
    TooLarge {
        /// Bytes of the part.
        bytes: u64,
        /// The van's limit.
        bytes_max: u64,
    },
    /// The link to a peer broke.
    #[error("the link to node {node} broke: {reason}")]
    LinkLost {
        /// The peer.
        node: NodeId,
        /// What was seen.
        reason: String,
    },
    /// The van is closed.
    #[error("the van is closed")]
    Closed,
    /// Anything else of the transport.
    #[error("transport: {0}")]
    Transport(Arc<dyn std::error::Error + Send + Sync>),
}
