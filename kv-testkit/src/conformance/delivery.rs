//! Checks of what arrives: the same bytes, all of them, in order.

use std::sync::Arc;

use kv_core::wire::{Header, Kind, Message, PARTS};
use tokio::task::JoinSet;

use super::node::{Failure, Node, ensure, pattern};

const DATA: u32 = 1;
const DONE: u32 = 2;

/// Lengths around every boundary that a van might care about.
const LENGTHS: [usize; 12] = [0, 1, 7, 8, 9, 63, 64, 65, 1000, 4097, 65_535, 300_001];

/// Header and parts arrive identical, for 0 to 4 parts, empty ones and odd lengths; each part is aligned to 8 bytes.
pub(super) async fn v01_bytes_identical(node: &mut Node) -> Result<(), Failure> {
    let kinds = [Kind::Control, Kind::Init, Kind::Push, Kind::Reply];
    let mut expected = Vec::new();
    for (index, &len) in LENGTHS.iter().enumerate() {
        for parts in 0..=PARTS {
            let mut message = Message::new(kinds[(index + parts) % kinds.len()]);
            for part in 0..parts {
                // Every second part is another length, so that empty and odd ones meet.
                let len = if part % 2 == 0 { len } else { LENGTHS[(index + 5 * part) % LENGTHS.len()] };
                message = message.with_part(part, pattern((index * 10 + part) as u64, len));
            }
            let (check, sequence) = (node.check, u64::MAX - expected.len() as u64);
            expected.push(message.with_header(|header| {
                *header = Header {
                    status: 0xfedc,
                    sequence,
                    behind: 0xdead_beef,
                    epoch: check,
                    clock: DATA,
                    deadline_ms: 0x1234_5678,
                    ..*header
                };
            }));
        }
    }
    if node.rank == 0 {
        for to in node.others() {
            for message in &expected {
                node.send(to, message.clone()).await?;
            }
        }
    } else {
        for expected in &expected {
            let message = node.next_from(0, DATA).await?;
            ensure!(message.header() == expected.header(), "sent {:?}, got {:?}", expected.header(), message.header());
            for (index, (part, expected)) in message.parts().iter().zip(expected.parts()).enumerate() {
                ensure!(part == expected, "part {index} of {:?} has other bytes", message.header());
                let misaligned = part.as_ptr().align_offset(8);
                ensure!(part.is_empty() || misaligned == 0, "part {index} of {} bytes is not aligned", part.len());
            }
        }
    }
    node.barrier().await
}

/// Messages of one sender arrive in the order in which they were queued, whichever call queued them.
pub(super) async fn v02_order_per_sender(node: &mut Node) -> Result<(), Failure> {
    const COUNT: u64 = 5_000;
    let mut senders = JoinSet::new();
    for to in node.others() {
        let (van, peer) = (Arc::clone(node.van()), node.peers[to]);
        let messages: Vec<_> = (0..COUNT).map(|sequence| node.message(DATA, sequence)).collect();
        senders.spawn(async move {
            for (sequence, message) in messages.into_iter().enumerate() {
                let message = message.with_part(0, pattern(sequence as u64, sequence % 200));
                match sequence % 2 {
                    0 => van.send(peer, message).await?,
                    _ => match van.try_send(peer, message) {
                        Ok(()) => {}
                        Err(kv_core::van::TrySendError::Full(message)) => van.send(peer, message).await?,
                        Err(kv_core::van::TrySendError::Failed(error)) => return Err(error.into()),
                    },
                }
            }
            Ok::<_, Failure>(())
        });
    }
    let mut next = vec![0; node.size()];
    for _ in 0..COUNT * (node.size() as u64 - 1) {
        let (from, message) = node.next(DATA).await?;
        let Some(rank) = node.peers.iter().position(|&peer| peer == from) else {
            return Err(Failure(format!("a message of the unknown node {from}")));
        };
        let sequence = message.header().sequence;
        ensure!(sequence == next[rank], "rank {rank}: message {sequence} arrived instead of {}", next[rank]);
        next[rank] += 1;
    }
    while let Some(sender) = senders.join_next().await {
        sender??;
    }
    node.barrier().await
}

/// A large part arrives whole.
pub(super) async fn v04_large_part(node: &mut Node) -> Result<(), Failure> {
    let bytes = node.harness.large_part_bytes().min(node.van().capability().part_bytes_max);
    let len = usize::try_from(bytes).map_err(|_| Failure(format!("{bytes} bytes do not fit this machine")))?;
    if node.rank == 0 {
        node.send(1, node.message(DATA, 0).with_part(3, pattern(4, len))).await?;
    } else if node.rank == 1 {
        let message = node.next_from(0, DATA).await?;
        ensure!(message.parts().len() == 4, "{} parts instead of 4", message.parts().len());
        ensure!(*message.part(3) == pattern(4, len), "the part has other bytes");
    }
    node.barrier().await
}

/// Many small messages arrive, all of them, each once, in order.
pub(super) async fn v05_small_messages_without_loss(node: &mut Node) -> Result<(), Failure> {
    let count = node.harness.small_messages();
    let body = pattern(5, 64);
    if node.rank == 0 {
        for sequence in 0..count {
            node.send(1, node.message(DATA, sequence).with_part(0, body.clone())).await?;
        }
    } else if node.rank == 1 {
        for expected in 0..count {
            let message = node.next_from(0, DATA).await?;
            let sequence = message.header().sequence;
            ensure!(sequence == expected, "message {sequence} arrived instead of {expected}");
            ensure!(*message.part(0) == body, "message {sequence} has another body");
        }
    }
    node.barrier().await
}

/// A node can send to itself like to any other.
pub(super) async fn v07_self_delivery(node: &mut Node) -> Result<(), Failure> {
    let (own, endpoint) = (node.van().node(), node.van().endpoint().clone());
    let connected = node.van().connect(&endpoint).await?;
    ensure!(connected == own, "connecting to itself gave node {connected} instead of {own}");
    for sequence in 0..100 {
        let body = pattern(sequence, 1000 + sequence as usize);
        node.send(node.rank, node.message(DATA, sequence).with_part(1, body.clone())).await?;
        let (from, message) = node.next(DATA).await?;
        ensure!(from == own, "its own message came from {from}");
        ensure!(message.header().sequence == sequence && *message.part(1) == body, "message {sequence} was changed");
    }
    node.barrier().await
}

/// Tasks that send to one peer at the same time do not tear each other's messages.
pub(super) async fn v08_many_tasks_one_peer(node: &mut Node) -> Result<(), Failure> {
    const TASKS: u64 = 16;
    const COUNT: u64 = 100;
    let body = |task: u64, sequence: u64, part: u64| {
        pattern(task << 32 | sequence << 8 | part, ((task * 7919 + sequence * 613 + part * 101) % 20_000) as usize)
    };
    if node.rank == 0 {
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (van, peer) = (Arc::clone(node.van()), node.peers[1]);
            let messages: Vec<_> = (0..COUNT).map(|sequence| node.message(DATA, task << 32 | sequence)).collect();
            tasks.spawn(async move {
                for (sequence, mut message) in messages.into_iter().enumerate() {
                    for part in 0..3 {
                        message = message.with_part(part, body(task, sequence as u64, part as u64));
                    }
                    van.send(peer, message).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
    } else if node.rank == 1 {
        let mut next = [0; TASKS as usize];
        for _ in 0..TASKS * COUNT {
            let message = node.next_from(0, DATA).await?;
            let (task, sequence) = (message.header().sequence >> 32, message.header().sequence & 0xffff_ffff);
            ensure!(task < TASKS, "a message of task {task}");
            let next = &mut next[task as usize];
            ensure!(sequence == *next, "task {task}: message {sequence} arrived instead of {next}");
            *next += 1;
            for (part, bytes) in message.parts().iter().enumerate() {
                ensure!(*bytes == body(task, sequence, part as u64), "task {task}: message {sequence} is torn");
            }
        }
    }
    node.barrier().await
}

/// All ranks send large parts to all others at once and read meanwhile: nobody waits for somebody who waits.
pub(super) async fn v19_everybody_sends_large_parts(node: &mut Node) -> Result<(), Failure> {
    const COUNT: u64 = 4;
    let bytes = node.harness.large_part_bytes().min(node.van().capability().part_bytes_max) / 4;
    let len = usize::try_from(bytes).map_err(|_| Failure(format!("{bytes} bytes do not fit this machine")))?;
    let mut senders = JoinSet::new();
    for to in node.others() {
        let (van, peer, body) = (Arc::clone(node.van()), node.peers[to], pattern(node.rank as u64, len));
        let messages: Vec<_> = (0..COUNT).map(|sequence| node.message(DATA, sequence)).collect();
        let done = node.message(DONE, 0);
        senders.spawn(async move {
            for message in messages {
                van.send(peer, message.with_part(2, body.clone())).await?;
            }
            van.send(peer, done).await?;
            Ok::<_, Failure>(())
        });
    }
    for from in node.others() {
        let expected = pattern(from as u64, len);
        for sequence in 0..COUNT {
            let message = node.next_from(from, DATA).await?;
            ensure!(message.header().sequence == sequence, "rank {from}: out of order");
            ensure!(*message.part(2) == expected, "rank {from}: part {sequence} has other bytes");
        }
        node.next_from(from, DONE).await?;
    }
    while let Some(sender) = senders.join_next().await {
        sender??;
    }
    node.barrier().await
}
