//! How links come about under pressure, and how they end.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test itself")]

mod raw;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kv_core::cluster::NodeId;
use kv_core::van::{Endpoint, InboxLimits, QueueLimits, TrySendError, Van, VanError};
use kv_core::wire::WIRE_VERSION;
use kv_transport_tcp::{TcpConfig, TcpVan};
use raw::*;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// Both dial, several times at once and by two names of the address; one link comes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_link_however_both_dial() {
    for round in 0..100 {
        let (a, mut a_inbox) = van(1).await;
        let (b, mut b_inbox) = van(2).await;
        let (a, b) = (Arc::new(a), Arc::new(b));
        let mut dials = tokio::task::JoinSet::new();
        for (from, to) in [(&a, &b), (&b, &a)] {
            let by_name = Endpoint(to.endpoint().0.replace("127.0.0.1", "localhost"));
            for endpoint in [to.endpoint().clone(), by_name, to.endpoint().clone()] {
                let (from, to) = (Arc::clone(from), to.node());
                dials.spawn(async move { assert_eq!(from.connect(&endpoint).await.unwrap(), to) });
            }
        }
        timeout(FOREVER, dials.join_all()).await.expect("the dials end");
        for sequence in 0..10 {
            a.send(NodeId(2), message(sequence)).await.unwrap();
            expect_message(&mut b_inbox, 1, sequence).await;
            b.send(NodeId(1), message(sequence)).await.unwrap();
            expect_message(&mut a_inbox, 2, sequence).await;
        }
        a.close().await.unwrap();
        expect_down(&mut b_inbox, 1).await;
        b.send(NodeId(2), message(round)).await.unwrap();
        expect_message(&mut b_inbox, 2, round).await;
        b.close().await.unwrap();
        let left = a_inbox.recv().await;
        assert!(left.is_none(), "a second link ended: {left:?}");
    }
}

/// A node that lost the link finds its peer, which has not noticed, willing again as soon as it has.
#[tokio::test]
async fn a_lost_link_can_be_made_again() {
    let (ours, mut inbox) = van(100).await;
    for node in [1, 200] {
        for sequence in 0..3 {
            let (mut stream, code, _) = loop {
                let introduced = introduce(ours.endpoint(), &hello(WIRE_VERSION, node, "job")).await;
                if introduced.1 != LINKED {
                    break introduced;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(code, WELCOME);
            if node < 100 {
                stream.write_all(b"open").await.unwrap();
            }
            stream.write_all(&message(sequence).header().encode()).await.unwrap();
            if sequence > 0 {
                // Of the one before; always ahead of anything of its successor.
                expect_down(&mut inbox, node).await;
            }
            expect_message(&mut inbox, node, sequence).await;
            drop(stream);
        }
        expect_down(&mut inbox, node).await;
    }
}

/// A peer whose word counts and who opens a new link does not have the old one any more.
#[tokio::test]
async fn a_new_link_of_the_deciding_peer_replaces_the_old() {
    let (ours, mut inbox) = van(100).await;
    let mut streams = Vec::new();
    for sequence in 0..3 {
        let (mut stream, code, _) = introduce(ours.endpoint(), &hello(WIRE_VERSION, 1, "job")).await;
        assert_eq!(code, WELCOME);
        stream.write_all(b"open").await.unwrap();
        stream.write_all(&message(sequence).header().encode()).await.unwrap();
        if sequence > 0 {
            let reason = expect_down(&mut inbox, 1).await;
            assert!(reason.contains("opened a new connection"), "{reason}");
        }
        expect_message(&mut inbox, 1, sequence).await;
        streams.push(stream);
    }
}

struct Owner(Arc<[u8; 100_000]>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0[..]
    }
}

#[tokio::test]
async fn a_van_that_is_dropped_lets_go_of_everything() {
    let (a, _a_inbox) = van(1).await;
    let (b, mut b_inbox) = van(2).await;
    a.connect(b.endpoint()).await.unwrap();
    let owner = Arc::new([7_u8; 100_000]);
    let body = Bytes::from_owner(Owner(Arc::clone(&owner)));
    a.send(NodeId(2), message(0).with_part(0, body.clone())).await.unwrap();
    expect_message(&mut b_inbox, 1, 0).await;
    while let Ok(()) = a.try_send(NodeId(2), message(1).with_part(0, body.clone())) {}
    drop((a, body));
    loop {
        // What was written before arrives; then the end.
        match next(&mut b_inbox).await {
            kv_core::van::VanEvent::PeerDown { node, .. } => break assert_eq!(node, NodeId(1)),
            kv_core::van::VanEvent::Message { .. } => {}
        }
    }
    timeout(FOREVER, async {
        while Arc::strong_count(&owner) > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the queue is released");
    let sent = b.send(NodeId(1), message(0)).await;
    assert!(matches!(sent, Err(VanError::UnknownPeer(_))), "{sent:?}");
}

/// Limits below the size of one message let it through alone.
#[tokio::test]
async fn a_message_larger_than_every_queue_passes() {
    let inbox = InboxLimits { events: 1, bytes: 1000 };
    let tight = |node| TcpConfig { inbox, queue: QueueLimits { messages: 1, bytes: 1000 }, ..config(node) };
    let (a, _a_inbox) = TcpVan::bind(tight(1)).await.unwrap();
    let (b, mut b_inbox) = TcpVan::bind(tight(2)).await.unwrap();
    a.connect(b.endpoint()).await.unwrap();
    let body = Bytes::from(vec![3_u8; 3_000_000]);
    let sending = async {
        for sequence in 0..20 {
            a.send(NodeId(2), message(sequence).with_part(1, body.clone())).await.unwrap();
        }
    };
    let receiving = async {
        for sequence in 0..20 {
            expect_message(&mut b_inbox, 1, sequence).await;
        }
    };
    timeout(FOREVER, async { tokio::join!(sending, receiving) }).await.expect("no deadlock");
}

/// A peer that does not read keeps a closing van for the configured time and no longer; the loss is said.
#[tokio::test]
async fn closing_does_not_wait_for_ever() {
    let slow = TcpConfig { inbox: InboxLimits { events: 1, bytes: 1000 }, ..config(2) };
    let (b, _b_inbox) = TcpVan::bind(slow).await.unwrap();
    let (a, mut a_inbox) =
        TcpVan::bind(TcpConfig { close_deadline: Duration::from_millis(200), ..config(1) }).await.unwrap();
    a.connect(b.endpoint()).await.unwrap();
    let body = Bytes::from(vec![3_u8; 100_000]);
    let waiting = loop {
        match a.try_send(NodeId(2), message(0).with_part(0, body.clone())) {
            Ok(()) => {}
            Err(TrySendError::Full(message)) => {
                let sending = a.send(NodeId(2), message);
                tokio::pin!(sending);
                // The kernel takes a while to be full.
                if timeout(Duration::from_millis(100), &mut sending).await.is_err() {
                    let (sent, closed) = tokio::join!(sending, a.close());
                    assert!(matches!(closed, Err(VanError::LinkLost { node: NodeId(2), .. })), "{closed:?}");
                    break sent;
                }
            }
            Err(TrySendError::Failed(error)) => panic!("{error}"),
        }
    };
    // It was queued if the kernel took more after all.
    assert!(matches!(waiting, Ok(()) | Err(VanError::Closed)), "{waiting:?}");
    a.close().await.unwrap();
    assert!(a_inbox.recv().await.is_none());
}

/// Both close at the same time, with much under way in both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_close_at_once() {
    for _ in 0..20 {
        let (a, _a_inbox) = van(1).await;
        let (b, _b_inbox) = van(2).await;
        a.connect(b.endpoint()).await.unwrap();
        b.connect(a.endpoint()).await.unwrap();
        let body = Bytes::from(vec![3_u8; 50_000]);
        for sequence in 0..100 {
            a.send(NodeId(2), message(sequence).with_part(0, body.clone())).await.unwrap();
            b.send(NodeId(1), message(sequence).with_part(0, body.clone())).await.unwrap();
        }
        let (a, b) = timeout(FOREVER, async { tokio::join!(a.close(), b.close()) }).await.expect("an end");
        a.unwrap();
        b.unwrap();
    }
}

/// A `close` that is dropped goes on; asking again waits for its end.
#[tokio::test]
async fn a_dropped_close_still_closes() {
    let (a, _a_inbox) = van(1).await;
    let (b, mut b_inbox) = van(2).await;
    a.connect(b.endpoint()).await.unwrap();
    for sequence in 0..100 {
        a.send(NodeId(2), message(sequence)).await.unwrap();
    }
    tokio::select! {
        biased;
        _ = a.close() => panic!("nobody has read yet"),
        () = std::future::ready(()) => {}
    }
    assert!(matches!(a.send(NodeId(2), message(0)).await, Err(VanError::Closed)));
    for sequence in 0..100 {
        expect_message(&mut b_inbox, 1, sequence).await;
    }
    expect_down(&mut b_inbox, 1).await;
    a.close().await.unwrap();
}

/// The dial of a dropped `connect` goes on, and nobody sees half of a link.
#[tokio::test]
async fn a_dropped_connect_leaves_a_whole_link() {
    for (ours, theirs) in [(1, 2), (2, 1)] {
        let (a, _a_inbox) = van(ours).await;
        let (b, mut b_inbox) = van(theirs).await;
        tokio::select! {
            biased;
            _ = a.connect(b.endpoint()) => panic!("that takes a round trip"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(a.connect(b.endpoint()).await.unwrap(), NodeId(theirs));
        a.send(NodeId(theirs), message(3)).await.unwrap();
        expect_message(&mut b_inbox, ours, 3).await;
    }
}
