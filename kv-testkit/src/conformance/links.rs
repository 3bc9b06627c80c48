//! Checks of links: how they come to be, and how they end.

use futures_util::future::join_all;
use kv_core::van::VanError;

use super::node::{Failure, Node, ensure, pattern};

const DATA: u32 = 1;
const BIRTH: u32 = 2;
const COUNT: u64 = 200;

/// Connecting again, or several times at once, gives the same peer and no second link.
pub(super) async fn v11_connect_idempotent(node: &mut Node) -> Result<(), Failure> {
    if node.rank == 0 {
        for rank in node.others() {
            let endpoint = node.endpoints[rank].clone();
            let answers = join_all((0..10).map(|_| node.van().connect(&endpoint))).await;
            for answer in answers.into_iter().chain([node.van().connect(&endpoint).await]) {
                let peer = answer?;
                ensure!(peer == node.peers[rank], "connecting to rank {rank} gave node {peer}");
            }
            node.send(rank, node.message(BIRTH, 0)).await?;
        }
    } else {
        // Having heard of rank 0, this rank has a link to it and connecting gives that one.
        node.next_from(0, BIRTH).await?;
        let endpoint = node.endpoints[0].clone();
        let peer = node.van().connect(&endpoint).await?;
        ensure!(peer == node.peers[0], "connecting back gave node {peer}");
    }
    exchange_with_all_of_rank_0(node).await?;
    one_link_ends(node).await
}

/// All ranks connect to all others at the same time; one link per pair results.
pub(super) async fn v18_one_link_when_both_connect(node: &mut Node) -> Result<(), Failure> {
    let others: Vec<_> = node.others().collect();
    let answers = join_all(others.iter().map(|&rank| node.van().connect(&node.endpoints[rank]))).await;
    for (&rank, answer) in others.iter().zip(answers) {
        let peer = answer?;
        ensure!(peer == node.peers[rank], "connecting to rank {rank} gave node {peer}");
    }
    node.barrier().await?;
    exchange_with_all_of_rank_0(node).await?;
    one_link_ends(node).await
}

/// Messages in both directions between rank 0 and all others; a second link would show as disorder or a lost peer.
async fn exchange_with_all_of_rank_0(node: &mut Node) -> Result<(), Failure> {
    for sequence in 0..COUNT {
        if node.rank == 0 {
            for rank in node.others() {
                node.send(rank, node.message(DATA, sequence)).await?;
            }
            for rank in node.others() {
                let message = node.next_from(rank, DATA).await?;
                ensure!(message.header().sequence == sequence, "rank {rank}: out of order");
            }
        } else {
            let message = node.next_from(0, DATA).await?;
            ensure!(message.header().sequence == sequence, "rank 0: out of order");
            node.send(0, message).await?;
        }
    }
    Ok(())
}

/// Rank 0 closes its van; with one link each, the others hear of one lost peer. They have no links among themselves
/// that this could rely on, so it ends without a barrier.
async fn one_link_ends(node: &mut Node) -> Result<(), Failure> {
    if !node.van().capability().reports_peer_down {
        return Ok(());
    }
    node.downs_expected = true;
    if node.rank == 0 {
        node.van().close().await?;
        return Ok(());
    }
    node.down_once(node.peers[0]).await
}

/// What was queued before `close` arrives; afterwards the van answers `Closed` to everything.
pub(super) async fn v12_close_flushes(node: &mut Node) -> Result<(), Failure> {
    let len = |sequence: u64| (sequence % 50) as usize * 2_000;
    if node.rank == 0 {
        for rank in node.others() {
            for sequence in 0..COUNT {
                let body = pattern(sequence, len(sequence));
                node.send(rank, node.message(DATA, sequence).with_part(0, body)).await?;
            }
        }
    } else {
        for sequence in 0..COUNT {
            // Not a word to rank 0 meanwhile, which no longer listens.
            let message = node.next_from(0, DATA).await?;
            ensure!(message.header().sequence == sequence, "out of order: {}", message.header().sequence);
            ensure!(*message.part(0) == pattern(sequence, len(sequence)), "message {sequence} has another body");
        }
        if node.van().capability().reports_peer_down {
            node.down_once(node.peers[0]).await?;
        }
    }
    node.step.set("closing");
    node.van().close().await?;
    node.van().close().await?;
    for rank in 0..node.size() {
        let peer = node.peers[rank];
        let sent = node.van().send(peer, node.message(DATA, 0)).await;
        ensure!(matches!(sent, Err(VanError::Closed)), "a send after the close: {sent:?}");
        let connected = node.van().connect(&node.endpoints[rank]).await;
        ensure!(matches!(connected, Err(VanError::Closed)), "a connect after the close: {connected:?}");
    }
    node.inbox_ended().await;
    Ok(())
}

/// A lost peer is reported once, after its last message, whether it said goodbye or just died.
pub(super) async fn v13_peer_down_once(node: &mut Node) -> Result<(), Failure> {
    // Rank 0 closes its van; of the others, each hears everything and then that it is gone.
    if node.rank == 0 {
        for sequence in 0..COUNT {
            for rank in node.others() {
                node.send(rank, node.message(DATA, sequence).with_part(0, pattern(sequence, 5_000))).await?;
            }
        }
        node.step.set("closing");
        node.van().close().await?;
        return Ok(());
    }
    for sequence in 0..COUNT {
        let message = node.next_from(0, DATA).await?;
        ensure!(message.header().sequence == sequence, "message {} out of order", message.header().sequence);
    }
    node.down_once(node.peers[0]).await?;
    let sent = node.van().send(node.peers[0], node.message(DATA, 0)).await;
    ensure!(
        matches!(sent, Err(VanError::UnknownPeer(_) | VanError::LinkLost { .. })),
        "a send to a lost peer: {sent:?}"
    );

    // Rank 1 dies without a word; only ranks from 2 remain to hear of it. It does not lead this barrier, because what
    // it says last may be lost.
    let rest: Vec<_> = (1..node.size()).rev().collect();
    node.barrier_of(&rest).await?;
    if node.rank == 1 {
        node.die();
        return Ok(());
    }
    node.down_once(node.peers[1]).await
}

/// After a node died, a new one can take its place and its address.
pub(super) async fn v14_new_incarnation(node: &mut Node) -> Result<(), Failure> {
    let old = node.peers[0];
    if node.rank == 0 {
        let endpoint = node.endpoints[0].clone();
        node.die();
        for rank in node.others() {
            node.raised(&format!("mourned-by-{rank}")).await?;
        }
        node.step.set("coming back");
        let reborn = match node.harness.reincarnate(0, &endpoint).await {
            Some(reborn) => reborn,
            None => node.harness.node(0).await,
        };
        node.replace(reborn);
        node.peers[0] = node.van().node();
        node.raise("reborn", &format!("{}\n{}", node.peers[0], node.van().endpoint()))?;
    } else {
        node.down_once(old).await?;
        node.raise(&format!("mourned-by-{}", node.rank), "")?;
        let reborn = node.raised("reborn").await?;
        let (id, endpoint) = reborn.split_once('\n').unwrap_or_default();
        node.step.set("connecting to the successor");
        let peer = node.van().connect(&endpoint.into()).await?;
        ensure!(peer.to_string() == id, "the successor is {id}, but connecting gave {peer}");
        node.peers[0] = peer;
        node.send(0, node.message(BIRTH, node.rank as u64)).await?;
    }
    if node.rank == 0 {
        for _ in node.others() {
            node.next(BIRTH).await?;
        }
    }
    exchange_with_all_of_rank_0(node).await?;
    node.barrier().await
}
