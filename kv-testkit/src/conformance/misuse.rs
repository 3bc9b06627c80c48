//! Checks of wrong calls, of buffers, and of strangers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kv_core::Buffer;
use kv_core::cluster::NodeId;
use kv_core::van::{TrySendError, VanError};
use kv_core::wire::{Header, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::node::{Failure, Node, ensure, pattern};

const DATA: u32 = 1;

/// Number of the message that ends an exchange.
const STOP: u64 = u64::MAX;

/// An answer within this time needed no waiting for anybody.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Larger parts are not tried: not every machine lets a test reserve them.
const TOO_LARGE_TRIED_MAX: u64 = 4 << 30;

/// Unknown peers, foreign addresses and oversize parts are answered at once, and nothing is sent.
pub(super) async fn v10_wrong_calls_answered_at_once(node: &mut Node) -> Result<(), Failure> {
    let van = Arc::clone(node.van());
    let Some(stranger) = (0x5eed..).map(NodeId).find(|id| !node.peers.contains(id)) else { return Ok(()) };
    let sent = timeout(AT_ONCE, van.send(stranger, node.message(DATA, 0))).await;
    ensure!(matches!(sent, Ok(Err(VanError::UnknownPeer(id))) if id == stranger), "to a stranger: {sent:?}");
    let sent = van.try_send(stranger, node.message(DATA, 0));
    ensure!(
        matches!(sent, Err(TrySendError::Failed(VanError::UnknownPeer(id))) if id == stranger),
        "to a stranger: {sent:?}"
    );

    for address in ["", "bogus://nowhere", "127.0.0.1:80"] {
        let answer = timeout(AT_ONCE, van.connect(&address.into())).await;
        ensure!(
            matches!(answer, Ok(Err(VanError::UnsupportedEndpoint { .. }))),
            "connecting to '{address}': {answer:?}"
        );
    }

    let bytes_max = van.capability().part_bytes_max;
    if bytes_max < TOO_LARGE_TRIED_MAX {
        // Zero pages that nobody touches: no memory is used.
        let part = Buffer::zeroed(bytes_max as usize + 1).share();
        let to = node.peers[(node.rank + 1) % node.size()];
        let message = node.message(DATA, 0).with_part(1, part);
        let sent = timeout(AT_ONCE, van.send(to, message.clone())).await;
        ensure!(matches!(sent, Ok(Err(VanError::TooLarge { .. }))), "a part of {bytes_max} + 1 bytes: {sent:?}");
        let sent = van.try_send(to, message);
        ensure!(
            matches!(sent, Err(TrySendError::Failed(VanError::TooLarge { .. }))),
            "a part of {bytes_max} + 1 bytes: {sent:?}"
        );
    }
    node.barrier().await
}

/// Memory whose end is counted.
struct Counted {
    bytes: Bytes,
    dropped: Arc<watch::Sender<u64>>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.dropped.send_modify(|count| *count += 1);
    }
}

/// Every buffer given to the van is released once its message has arrived.
pub(super) async fn v15_buffers_released(node: &mut Node) -> Result<(), Failure> {
    const COUNT: u64 = 300;
    if node.rank == 0 {
        let dropped = Arc::new(watch::Sender::new(0));
        let mut given = 0;
        for sequence in 0..COUNT {
            for to in 0..node.size() {
                let mut message = node.message(DATA, sequence);
                for part in [0, 3] {
                    let bytes = pattern(sequence, (sequence as usize * 131) % 30_000 + 1);
                    let counted = Counted { bytes, dropped: Arc::clone(&dropped) };
                    message = message.with_part(part, Bytes::from_owner(counted));
                    given += 1;
                }
                node.send(to, message).await?;
            }
            node.next_from(0, DATA).await?;
        }
        node.step.set(format!("waiting for the release of {given} buffers"));
        let mut dropped = dropped.subscribe();
        let released = timeout(AT_ONCE, dropped.wait_for(|count| *count == given)).await.is_ok();
        ensure!(released, "of {given} buffers {} were released", *dropped.borrow());
    } else {
        for _ in 0..COUNT {
            node.next_from(0, DATA).await?;
        }
    }
    node.barrier().await
}

/// Strangers who send nonsense, or nothing, are dropped, and the nodes go on as if nothing had happened.
pub(super) async fn v16_strangers_harm_nobody(node: &mut Node) -> Result<(), Failure> {
    match node.rank {
        0 => loop {
            // Rank 0 is the victim; it keeps answering rank 1 meanwhile.
            let message = node.next_from(1, DATA).await?;
            if message.header().sequence == STOP {
                break;
            }
            node.send(1, message).await?;
        },
        1 => {
            let mut sequence = 0;
            let harassed = node.raised("harassed");
            tokio::pin!(harassed);
            loop {
                node.send(0, node.message(DATA, sequence).with_part(0, pattern(sequence, 2000))).await?;
                let answer = node.next_from(0, DATA).await?;
                ensure!(answer.header().sequence == sequence, "an answer out of order");
                ensure!(*answer.part(0) == pattern(sequence, 2000), "an answer with another body");
                sequence += 1;
                tokio::select! {
                    biased;
                    done = &mut harassed => break drop(done?),
                    () = tokio::task::yield_now() => {}
                }
            }
            node.send(0, node.message(DATA, STOP)).await?;
        }
        2 => {
            let Some(address) = node.harness.public_address(&node.endpoints[0]) else {
                return Err(Failure("the harness does not say where strangers connect".to_owned()));
            };
            let mut silent = Vec::new();
            for (index, bytes) in nonsense().into_iter().enumerate() {
                node.step.set(format!("sending nonsense number {index}"));
                silent.push(TcpStream::connect(address).await?);
                let mut stranger = TcpStream::connect(address).await?;
                // The victim may hang up at any time: then writing fails, which is its right.
                let _ = stranger.write_all(&bytes).await;
                let _ = stranger.shutdown().await;
                let _ = stranger.read_to_end(&mut Vec::new()).await;
            }
            node.raise("harassed", "")?;
        }
        _ => {}
    }
    node.barrier().await
}

fn nonsense() -> Vec<Vec<u8>> {
    let header = |part_len: u64| {
        let mut bytes = Header { part_count: 1, ..Header::new(Kind::Push) }.encode();
        bytes[32..40].copy_from_slice(&part_len.to_le_bytes());
        bytes.to_vec()
    };
    let mut random = vec![0; 100_000];
    fastrand::Rng::with_seed(16).fill(&mut random);
    vec![
        Vec::new(),
        vec![0],
        vec![0xff; 4096],
        random,
        b"GET / HTTP/1.1\r\nHost: parameter-server\r\n\r\n".to_vec(),
        // A message without having introduced oneself; a truncated one; one that announces 2^63 bytes.
        header(0),
        header(1000)[..40].to_vec(),
        header(1 << 63),
    ]
}
