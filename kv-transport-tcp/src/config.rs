//! Settings of a TCP van.

use std::time::Duration;

use kv_core::cluster::{NodeId, Role};
use kv_core::van::{InboxLimits, QueueLimits};

/// Settings of a TCP van. [`TcpConfig::new`] gives the defaults named with each field.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Where to listen, as `HOST:PORT`; port 0 takes any free one. Default `127.0.0.1:0`.
    pub bind: String,
    /// The host that others are told to connect to; by default the address listened on. Necessary when listening on
    /// every address (`0.0.0.0`, `[::]`), because then there is no such one.
    pub advertise_host: Option<String>,
    /// The port that others are told to connect to; by default the one listened on.
    pub advertise_port: Option<u16>,
    /// The job; nodes of different jobs refuse each other. At most 255 bytes.
    pub job: String,
    /// This node's identity.
    pub node: NodeId,
    /// This node's role; peers name it in what they log.
    pub role: Role,
    /// Bounds of the inbox.
    pub inbox: InboxLimits,
    /// Largest part of a message, in bytes, to send and to accept. Default 512 MiB.
    pub part_bytes_max: u64,
    /// Bounds of the queue of one link. Default 1024 messages, 16 MiB.
    pub queue: QueueLimits,
    /// How long connecting and introducing oneself may take, from the first packet on. Default 5 s.
    pub handshake_deadline: Duration,
    /// Connections that may be in the handshake at once; further ones wait in the kernel's queue. Default 256.
    pub unfinished_handshakes_max: usize,
    /// How long a peer may pause in the middle of a message before its link is given up: meanwhile it keeps room in
    /// the inbox that others need. Default 30 s.
    pub stall_deadline: Duration,
    /// How long [`close`](kv_core::van::Van::close) waits for the peers to read what was queued. Default 10 s.
    pub close_deadline: Duration,
    /// An idle link is probed after this long, and again every third of it; three unanswered probes end it.
    /// Default 15 s.
    pub keepalive: Duration,
}

impl TcpConfig {
    /// The defaults, for a node of `job`.
    #[must_use]
    pub fn new(job: impl Into<String>, node: NodeId, role: Role) -> Self {
        Self {
            bind: "127.0.0.1:0".to_owned(),
            advertise_host: None,
            advertise_port: None,
            job: job.into(),
            node,
            role,
            inbox: InboxLimits::default(),
            part_bytes_max: 512 * 1024 * 1024,
            queue: QueueLimits::default(),
            handshake_deadline: Duration::from_secs(5),
            unfinished_handshakes_max: 256,
            stall_deadline: Duration::from_secs(30),
            close_deadline: Duration::from_secs(10),
            keepalive: Duration::from_secs(15),
        }
    }
}
