//! Checks of what happens when a receiver does not read: senders wait, memory stays bounded, nobody else suffers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kv_core::van::TrySendError;
use kv_core::wire::{Kind, Message};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::node::{Failure, Node, ensure, pattern};

const DATA: u32 = 1;
const PING: u32 = 2;
const LAST: u32 = 3;

/// Body of the messages that fill a link.
const BODY_BYTES: usize = 64 * 1024;

/// A sender without progress for this long counts as waiting. When a slow machine makes it too short, less is filled
/// than would fit, and the checks still hold.
const QUIET: Duration = Duration::from_millis(200);

/// Sends messages of one size in a task and tells how many were taken.
struct Filler {
    task: JoinHandle<Result<(), Failure>>,
    taken: watch::Receiver<u64>,
    stop: Arc<AtomicBool>,
}

impl Filler {
    fn start(node: &Node, to: usize, count: u64, body: Bytes) -> Self {
        let (van, peer, check) = (Arc::clone(node.van()), node.peers[to], node.check);
        let (progress, taken) = watch::channel(0);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            for sequence in 0..count {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let message = numbered(check, sequence).with_part(0, body.clone());
                van.send(peer, message).await?;
                progress.send_replace(sequence + 1);
            }
            Ok(())
        });
        Self { task, taken, stop }
    }

    /// Waits until the sender waits or is through; returns how many messages were taken.
    async fn settled(&mut self) -> u64 {
        while let Ok(Ok(())) = timeout(QUIET, self.taken.changed()).await {}
        *self.taken.borrow()
    }

    async fn done(self) -> Result<(), Failure> {
        self.task.await?
    }

    /// Sends nothing after the message at hand; returns how many were sent.
    async fn stop(self) -> Result<u64, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await??;
        Ok(*self.taken.borrow())
    }
}

fn numbered(check: u32, sequence: u64) -> Message {
    Message::new(Kind::Push).with_header(|header| {
        header.epoch = check;
        header.clock = DATA;
        header.sequence = sequence;
    })
}

/// While rank 1 does not read, rank 0 still exchanges messages with rank 2.
pub(super) async fn v03_slow_receiver_delays_nobody_else(node: &mut Node) -> Result<(), Failure> {
    const EXCHANGES: u64 = 200;
    let count = node.harness.buffered_bytes_max() / BODY_BYTES as u64 + 1;
    match node.rank {
        0 => {
            let mut filler = Filler::start(node, 1, count, pattern(3, BODY_BYTES));
            filler.settled().await;
            for sequence in 0..EXCHANGES {
                node.send(2, node.message(PING, sequence).with_part(0, pattern(sequence, 100))).await?;
                let answer = node.next_from(2, PING).await?;
                ensure!(answer.header().sequence == sequence, "an answer out of order");
            }
            node.raise("read", "")?;
            filler.done().await?;
        }
        1 => {
            node.raised("read").await?;
            drain(node, count, BODY_BYTES).await?;
        }
        2 => {
            for _ in 0..EXCHANGES {
                let ping = node.next_from(0, PING).await?;
                node.send(0, ping).await?;
            }
        }
        _ => {}
    }
    node.barrier().await
}

/// `send` waits once the link is full, a bounded number of bytes is under way, and it goes on when the receiver does.
pub(super) async fn v06_back_pressure(node: &mut Node) -> Result<(), Failure> {
    let bytes_max = node.harness.buffered_bytes_max();
    // Large bodies meet the limit of bytes; messages without a body that of messages, where a header is 64 bytes.
    for (event, body_bytes, count) in
        [("bodies", BODY_BYTES, bytes_max / BODY_BYTES as u64 + 1), ("headers", 0, bytes_max / 64 + 1)]
    {
        if node.rank == 0 {
            let mut filler = Filler::start(node, 1, count, pattern(6, body_bytes));
            let taken = filler.settled().await;
            ensure!(taken < count, "took {taken} messages of {body_bytes} bytes although nobody reads");
            node.raise(event, "")?;
            node.step.set("waiting for the link to take more");
            // An error here means that the sender is through, with an outcome that is looked at next.
            let _ = filler.taken.wait_for(|now| *now > taken).await;
            let sent = filler.stop().await?;
            node.send(1, node.message(LAST, sent)).await?;
        } else if node.rank == 1 {
            node.raised(event).await?;
            let mut next = 0;
            loop {
                let message = node.next_message().await?;
                let sequence = message.header().sequence;
                if message.header().clock == LAST {
                    ensure!(next == sequence, "{next} messages arrived of {sequence}");
                    break;
                }
                ensure!(sequence == next, "message {sequence} arrived instead of {next}");
                ensure!(message.part(0).len() == body_bytes, "message {sequence} has another length");
                next += 1;
            }
        }
        node.barrier().await?;
    }
    Ok(())
}

/// A dropped `send` has queued the whole message or none of it, and the link stays good.
pub(super) async fn v09_cancelled_sends(node: &mut Node) -> Result<(), Failure> {
    const TRIES: u64 = 2_000;
    let body = |sequence: u64| pattern(sequence, 30_000 + (sequence % 1000) as usize);
    if node.rank == 0 {
        let mut taken = Vec::new();
        let mut cancelled = 0;
        for sequence in 0..TRIES {
            let message = node.message(DATA, sequence).with_part(0, body(sequence));
            // The first half meets a receiver that does not read, the second half one that does.
            if sequence == TRIES / 2 {
                node.raise("read", "")?;
            }
            let sending = node.van().send(node.peers[1], message);
            tokio::select! {
                biased;
                sent = sending => {
                    sent?;
                    taken.push(sequence);
                }
                () = polled_a_few_times(sequence % 4) => cancelled += 1,
            }
        }
        let list: Vec<u8> = taken.iter().flat_map(|sequence| sequence.to_le_bytes()).collect();
        node.send(1, node.message(LAST, cancelled).with_part(0, Bytes::from(list))).await?;
        node.next_from(1, LAST).await?;
    } else if node.rank == 1 {
        node.raised("read").await?;
        let mut arrived = HashSet::new();
        let mut last_arrived = None;
        let last = loop {
            let message = node.next_message().await?;
            if message.header().clock == LAST {
                break message;
            }
            let sequence = message.header().sequence;
            ensure!(last_arrived < Some(sequence), "message {sequence} arrived after {last_arrived:?}");
            ensure!(*message.part(0) == body(sequence), "message {sequence} is torn");
            last_arrived = Some(sequence);
            arrived.insert(sequence);
        };
        for taken in last.part(0).chunks_exact(8) {
            let taken = u64::from_le_bytes(taken.try_into().unwrap_or_default());
            ensure!(arrived.contains(&taken), "message {taken} was taken and did not arrive");
        }
        node.send(0, node.message(LAST, 0)).await?;
    }
    node.barrier().await
}

/// Ends after a few polls, so that the future beside it is dropped at different places.
async fn polled_a_few_times(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// `try_send` never waits: a full link gives the message back unchanged, and nothing is lost or doubled.
pub(super) async fn v17_try_send_gives_back(node: &mut Node) -> Result<(), Failure> {
    let count = node.harness.buffered_bytes_max() / BODY_BYTES as u64 + 1;
    if node.rank == 0 {
        let body = pattern(17, BODY_BYTES);
        let mut given_back = 0_u64;
        for sequence in 0..count {
            let message = node.message(DATA, sequence).with_part(0, body.clone());
            match node.van().try_send(node.peers[1], message.clone()) {
                Ok(()) => {}
                Err(TrySendError::Full(back)) => {
                    ensure!(back == message, "another message came back");
                    given_back += 1;
                    if given_back == 1 {
                        node.raise("read", "")?;
                    }
                    node.send(1, back).await?;
                }
                Err(TrySendError::Failed(error)) => return Err(error.into()),
            }
        }
        ensure!(given_back > 0, "took {count} messages of {BODY_BYTES} bytes although nobody reads");
    } else if node.rank == 1 {
        node.raised("read").await?;
        drain(node, count, BODY_BYTES).await?;
    }
    node.barrier().await
}

async fn drain(node: &mut Node, count: u64, body_bytes: usize) -> Result<(), Failure> {
    for expected in 0..count {
        let message = node.next_from(0, DATA).await?;
        let sequence = message.header().sequence;
        ensure!(sequence == expected, "message {sequence} arrived instead of {expected}");
        ensure!(message.part(0).len() == body_bytes, "message {sequence} has another length");
    }
    Ok(())
}
