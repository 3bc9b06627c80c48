//! The TCP van: kv messages over one TCP connection per pair of nodes.
//!
//! ```text
//!   send ──► queue of the link ──► writer task ──► socket ─ ─ ─ ► socket ──► reader task ──► Inbox
//!            bounded in messages   all that is                               64-byte header, room reserved,
//!            and bytes; full:      queued in one                             then each part into memory of
//!            send waits            writev                                    its own, aligned to 8 bytes
//! ```
//!
//! - *addresses*: `tcp://HOST:PORT` with an IPv4 address, an IPv6 address in brackets or a name.
//! - *handshake*: before anything else both sides say the protocol's version, the job, and who they are. A stranger is
//!   dropped and counted; a node of another job or version is told why it is refused. See [`TcpConfig`] for its bounds.
//! - *one link per pair*: whoever dials, the node with the lower [`NodeId`](kv_core::cluster::NodeId) decides whether
//!   a connection becomes the link. Both may dial at once, by any name of the other's address.
//! - *back-pressure*: a receiver whose inbox is full stops reading its sockets; the kernel then stops the senders.
//!   What can be under way to a receiver that does not read is its inbox, the link's queue and the kernel's buffers.
//! - *lost links*: reported at once as [`PeerDown`](kv_core::van::VanEvent::PeerDown), after the last message. A
//!   machine that vanished without a word is noticed by keepalive probes when the link is idle; with bytes under way
//!   only heartbeats notice it soon. (The kernel's user timeout would, but it also ends links whose receiver is slow.)
//! - *close*: everything queued is written, then the van waits for the peers to have read it.
//!
//! There is no authentication and no encryption: for trusted networks only. Whoever can connect and knows the job's
//! name can take part; whoever does not can hold one unfinished handshake per connection, for a few seconds.
//!
//! Copies per message: none in user space when sending; when receiving, parts beyond 16 KiB are read into their final
//! memory and smaller ones are copied once out of the read buffer.

mod accept;
mod address;
mod config;
mod dial;
mod handshake;
mod link;
mod peers;
mod reader;
mod van;
mod writer;

pub use config::TcpConfig;
pub use van::TcpVan;
