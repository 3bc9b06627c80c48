//! The protocol of the handshake written down a second time, for peers that do not keep to it.

#![allow(unreachable_pub, reason = "a module of several test binaries")]
#![allow(dead_code, reason = "each test binary uses its own selection")]

use std::time::Duration;

use kv_core::cluster::{NodeId, Role};
use kv_core::van::{Endpoint, Inbox, VanEvent};
use kv_core::wire::{Kind, Message};
use kv_transport_tcp::{TcpConfig, TcpVan};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything takes here; only a hang meets it.
pub const FOREVER: Duration = Duration::from_secs(30);

pub const WELCOME: u8 = 0;
pub const LINKED: u8 = 1;
pub const REFUSED: u8 = 2;

pub fn config(node: u64) -> TcpConfig {
    TcpConfig::new("job", NodeId(node), Role::Worker)
}

pub async fn van(node: u64) -> (TcpVan, Inbox) {
    TcpVan::bind(config(node)).await.unwrap()
}

pub fn message(sequence: u64) -> Message {
    Message::new(Kind::Push).with_header(|header| header.sequence = sequence)
}

pub async fn next(inbox: &mut Inbox) -> VanEvent {
    timeout(FOREVER, inbox.recv()).await.expect("an event in time").expect("an open inbox")
}

/// The next event is this message.
pub async fn expect_message(inbox: &mut Inbox, from: u64, sequence: u64) {
    match next(inbox).await {
        VanEvent::Message { from: node, message } => {
            assert_eq!((node, message.header().sequence), (NodeId(from), sequence));
        }
        VanEvent::PeerDown { node, reason } => panic!("node {node} went down: {reason}"),
    }
}

/// The next event is the loss of this peer; returns the reason.
pub async fn expect_down(inbox: &mut Inbox, lost: u64) -> String {
    match next(inbox).await {
        VanEvent::PeerDown { node, reason } => {
            assert_eq!(node, NodeId(lost));
            reason.to_string()
        }
        VanEvent::Message { from, message } => panic!("{message:?} of {from}"),
    }
}

pub fn hello(version: u8, node: u64, job: &str) -> Vec<u8> {
    let endpoint = format!("tcp://127.0.0.1:{}", node % 60_000 + 1);
    let mut bytes = b"kvps".to_vec();
    bytes.extend([version, 2, job.len() as u8, endpoint.len() as u8]);
    bytes.extend(node.to_le_bytes());
    bytes.extend(job.as_bytes());
    bytes.extend(endpoint.as_bytes());
    bytes
}

pub fn answer(version: u8, code: u8, node: u64, reason: &str) -> Vec<u8> {
    let mut bytes = b"kvps".to_vec();
    bytes.extend([version, code, reason.len() as u8, 0]);
    bytes.extend(node.to_le_bytes());
    bytes.extend(reason.as_bytes());
    bytes
}

/// Introduces itself and returns the connection with the answer's code and reason.
pub async fn introduce(to: &Endpoint, hello: &[u8]) -> (TcpStream, u8, String) {
    let mut stream = TcpStream::connect(to.0.strip_prefix("tcp://").unwrap()).await.unwrap();
    stream.write_all(hello).await.unwrap();
    let (code, reason) = timeout(FOREVER, read_answer(&mut stream)).await.expect("an answer in time");
    (stream, code, reason)
}

async fn read_answer(stream: &mut TcpStream) -> (u8, String) {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed).await.unwrap();
    assert_eq!(&fixed[..4], b"kvps");
    let mut reason = vec![0; usize::from(fixed[6])];
    stream.read_exact(&mut reason).await.unwrap();
    (fixed[5], String::from_utf8(reason).unwrap())
}

/// Waits until the other side has ended the connection.
pub async fn hung_up(stream: &mut TcpStream) {
    let mut bytes = [0; 1024];
    // A reset is an end as well.
    while timeout(FOREVER, stream.read(&mut bytes)).await.expect("an end in time").is_ok_and(|count| count > 0) {}
}
