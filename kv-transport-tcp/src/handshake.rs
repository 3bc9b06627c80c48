//! How two nodes introduce themselves before the first message.
//!
//! ```text
//!  dialer ── hello ──► acceptor        0  [u8;4]  "kvps"             0  [u8;4]  "kvps"
//!  dialer ◄─ answer ── acceptor        4  u8      version            4  u8      version
//!  dialer ── open ───► acceptor        5  u8      role               5  u8      welcome, linked or refused
//!            (see below)               6  u8      length of job      6  u8      length of reason
//!                                      7  u8      length of endpoint 7  u8      0
//!                                      8  u64     node id            8  u64     node id
//!                                      16 job, endpoint              16 reason
//! ```
//!
//! The first five bytes and the whole of a refusal keep this form in every version, so that versions can refuse each
//! other with a reason.
//!
//! Of the two, the node with the lower id decides whether the connection becomes *the* link: the acceptor by its
//! answer, the dialer by its `open`. It has one table under one lock, so two nodes that dial each other at once, under
//! whatever names, end with one link; the other side hears `linked`, or the end of the connection, and uses that link.
//!
//! Nothing is reserved by a length that a stranger announces: no text is longer than 255 bytes.

use std::io;

use kv_core::cluster::{NodeId, Role};
use kv_core::van::Endpoint;
use kv_core::wire::WIRE_VERSION;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest job name, endpoint and reason in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"kvps";
const PREFIX_BYTES: usize = 5;
const FIXED_BYTES: usize = 16;

/// The dialer's go-ahead.
pub(crate) const OPEN: [u8; 4] = *b"open";

/// How a dialer introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) node: NodeId,
    pub(crate) role: Role,
    pub(crate) job: String,
    pub(crate) endpoint: Endpoint,
}

/// What the acceptor says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Go ahead.
    Welcome(NodeId),
    /// There is a link between us already.
    Linked(NodeId),
    /// Go away.
    Refused(String),
}

/// Why there was no handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// Not our protocol.
    #[error("it does not speak this protocol")]
    Stranger,
    /// Our protocol, but not the version of it.
    #[error("it speaks version {theirs} of this protocol, this node version {WIRE_VERSION}")]
    Version { theirs: u8 },
    /// The connection did not last.
    #[error("the connection ended during the handshake: {0}")]
    Io(#[from] io::Error),
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let role = match self.role {
            Role::Scheduler => 0,
            Role::Server => 1,
            Role::Worker => 2,
            Role::Observer => 3,
        };
        let mut bytes = fixed(role, self.job.len() as u8, self.endpoint.0.len() as u8, self.node);
        bytes.extend_from_slice(self.job.as_bytes());
        bytes.extend_from_slice(self.endpoint.0.as_bytes());
        bytes
    }

    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self, HandshakeError> {
        let theirs = read_prefix(from).await?;
        if theirs != WIRE_VERSION {
            return Err(HandshakeError::Version { theirs });
        }
        let ([role, job_len, endpoint_len], node) = read_fixed(from).await?;
        let role = match role {
            0 => Role::Scheduler,
            1 => Role::Server,
            2 => Role::Worker,
            3 => Role::Observer,
            _ => return Err(HandshakeError::Stranger),
        };
        let job = read_text(from, job_len).await?;
        let endpoint = Endpoint(read_text(from, endpoint_len).await?);
        Ok(Self { node, role, job, endpoint })
    }
}

impl Answer {
    /// The answer of the node `own`.
    pub(crate) fn encode(&self, own: NodeId) -> Vec<u8> {
        let (code, reason) = match self {
            Self::Welcome(_) => (0, ""),
            Self::Linked(_) => (1, ""),
            Self::Refused(reason) => (2, cut(reason, TEXT_BYTES_MAX)),
        };
        let mut bytes = fixed(code, reason.len() as u8, 0, own);
        bytes.extend_from_slice(reason.as_bytes());
        bytes
    }

    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self, HandshakeError> {
        let version = read_prefix(from).await?;
        let ([code, reason_len, _], node) = read_fixed(from).await?;
        match code {
            2 => Ok(Self::Refused(read_text(from, reason_len).await?)),
            _ if version != WIRE_VERSION => Err(HandshakeError::Version { theirs: version }),
            0 => Ok(Self::Welcome(node)),
            1 => Ok(Self::Linked(node)),
            _ => Err(HandshakeError::Stranger),
        }
    }
}

/// Waits for the dialer's go-ahead.
pub(crate) async fn read_open(from: &mut (impl AsyncRead + Unpin)) -> Result<(), HandshakeError> {
    let mut bytes = [0; OPEN.len()];
    from.read_exact(&mut bytes).await?;
    if bytes == OPEN { Ok(()) } else { Err(HandshakeError::Stranger) }
}

/// The beginning of a text, at most `bytes_max` long.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn fixed(code: u8, first_len: u8, second_len: u8, node: NodeId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FIXED_BYTES + 2 * TEXT_BYTES_MAX);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[WIRE_VERSION, code, first_len, second_len]);
    bytes.extend_from_slice(&node.0.to_le_bytes());
    bytes
}

/// The version, once it is clear that this is our protocol at all.
async fn read_prefix(from: &mut (impl AsyncRead + Unpin)) -> Result<u8, HandshakeError> {
    let mut bytes = [0; PREFIX_BYTES];
    from.read_exact(&mut bytes).await?;
    if bytes[..4] == MAGIC { Ok(bytes[4]) } else { Err(HandshakeError::Stranger) }
}

/// What follows the version: three bytes of meaning, and the node's id.
async fn read_fixed(from: &mut (impl AsyncRead + Unpin)) -> Result<([u8; 3], NodeId), HandshakeError> {
    let mut bytes = [0; FIXED_BYTES - PREFIX_BYTES];
    from.read_exact(&mut bytes).await?;
    let [a, b, c, node @ ..] = bytes;
    Ok(([a, b, c], NodeId(u64::from_le_bytes(node))))
}

async fn read_text(from: &mut (impl AsyncRead + Unpin), len: u8) -> Result<String, HandshakeError> {
    let mut bytes = vec![0; usize::from(len)];
    from.read_exact(&mut bytes).await?;
    String::from_utf8(bytes).map_err(|_| HandshakeError::Stranger)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            node: NodeId(0x0102_0304_0506_0708),
            role: Role::Worker,
            job: "mnist".to_owned(),
            endpoint: "tcp://[::1]:9".into(),
        }
    }

    #[tokio::test]
    async fn what_is_said_is_understood() {
        let bytes = hello().encode();
        assert_eq!(&bytes[..16], b"kvps\x01\x02\x05\x0d\x08\x07\x06\x05\x04\x03\x02\x01");
        assert_eq!(Hello::read(&mut &bytes[..]).await.unwrap(), hello());
        let own = NodeId(7);
        for answer in [Answer::Welcome(own), Answer::Linked(own), Answer::Refused("because".to_owned())] {
            assert_eq!(Answer::read(&mut &answer.encode(own)[..]).await.unwrap(), answer);
        }
    }

    #[tokio::test]
    async fn a_long_reason_is_cut_between_characters() {
        let long = Answer::Refused("ä".repeat(200));
        let answer = Answer::read(&mut &long.encode(NodeId(1))[..]).await.unwrap();
        assert_eq!(answer, Answer::Refused("ä".repeat(127)));
    }

    #[tokio::test]
    async fn every_truncation_and_every_changed_byte_has_an_outcome() {
        let bytes = hello().encode();
        for len in 0..bytes.len() {
            assert!(matches!(Hello::read(&mut &bytes[..len]).await, Err(HandshakeError::Io(_))), "{len} bytes");
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = value;
                // An outcome is enough; which one depends on the byte.
                let _ = Hello::read(&mut &changed[..]).await;
                let _ = Answer::read(&mut &changed[..]).await;
            }
        }
    }

    #[tokio::test]
    async fn other_versions_are_named() {
        let mut bytes = hello().encode();
        bytes[4] = 9;
        let error = Hello::read(&mut &bytes[..]).await.unwrap_err();
        assert_eq!(error.to_string(), "it speaks version 9 of this protocol, this node version 1");
    }
}
