//! Who is let in, who is told why not, and who is dropped.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test itself")]

mod raw;

use std::time::Duration;

use kv_core::cluster::NodeId;
use kv_core::van::{Endpoint, Van, VanError};
use kv_core::wire::{Header, Kind, WIRE_VERSION};
use kv_transport_tcp::{TcpConfig, TcpVan};
use raw::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn another_job_is_told_both_names() {
    let (ours, _inbox) = van(1).await;
    for node in [0, 2] {
        let config = TcpConfig { job: "other".to_owned(), ..config(node) };
        let (theirs, _inbox) = TcpVan::bind(config).await.unwrap();
        let refused = theirs.connect(ours.endpoint()).await.unwrap_err();
        assert!(matches!(refused, VanError::Refused { .. }), "{refused:?}");
        let text =
            format!("{} refused the connection: it belongs to the job 'job', this node to 'other'", ours.endpoint());
        assert_eq!(refused.to_string(), text);
    }
}

#[tokio::test]
async fn another_version_is_told_both_versions() {
    let (ours, _inbox) = van(1).await;
    let (mut stream, code, reason) = introduce(ours.endpoint(), &hello(9, 2, "job")).await;
    assert_eq!((code, &*reason), (REFUSED, "it speaks version 1 of the protocol, this node version 9"));
    hung_up(&mut stream).await;
}

/// A listener that answers whatever comes with `answer`.
async fn answering(answer: Vec<u8>) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint(format!("tcp://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = [0; 16];
            stream.read_exact(&mut bytes).await.unwrap();
            stream.write_all(&answer).await.unwrap();
            hung_up(&mut stream).await;
        }
    });
    endpoint
}

#[tokio::test]
async fn a_dialer_understands_every_refusal() {
    let (ours, _inbox) = van(1).await;
    for (bytes, expected) in [
        (answer(9, REFUSED, 2, "too old"), "too old"),
        (answer(9, WELCOME, 2, ""), "it speaks version 9 of this protocol, this node version 1"),
        (answer(WIRE_VERSION, 77, 2, ""), "it does not speak this protocol"),
        (answer(WIRE_VERSION, WELCOME, 1, ""), "it has this node's own id 0000000000000001"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "it does not speak this protocol"),
    ] {
        let endpoint = answering(bytes).await;
        let refused = ours.connect(&endpoint).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("{endpoint} refused the connection: {expected}"));
    }
}

#[tokio::test]
async fn whoever_does_not_answer_is_unreachable() {
    let config = TcpConfig { handshake_deadline: Duration::from_millis(200), ..config(1) };
    let (ours, _inbox) = TcpVan::bind(config).await.unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint(format!("tcp://{}", silent.local_addr().unwrap()));
    let reason = ours.connect(&endpoint).await.unwrap_err().to_string();
    assert_eq!(reason, format!("cannot reach {endpoint}: no link came about within 200ms"));

    drop(silent);
    let reason = ours.connect(&endpoint).await.unwrap_err();
    assert!(matches!(reason, VanError::Unreachable { .. }), "{reason:?}");

    // A peer that keeps saying that there is a link, when there is none.
    let endpoint = answering(answer(WIRE_VERSION, LINKED, 2, "")).await;
    let reason = ours.connect(&endpoint).await.unwrap_err();
    assert!(matches!(reason, VanError::Unreachable { .. }), "{reason:?}");
}

#[tokio::test]
async fn an_identity_that_is_taken_is_refused() {
    let (ours, _inbox) = van(1).await;
    let (twin, _inbox) = van(1).await;
    let refused = twin.connect(ours.endpoint()).await.unwrap_err();
    assert!(refused.to_string().ends_with("it has the id 0000000000000001 itself"), "{refused}");

    // Of an identity that is linked, the first one stays.
    let (_first, code, _) = introduce(ours.endpoint(), &hello(WIRE_VERSION, 5, "job")).await;
    assert_eq!(code, WELCOME);
    let (_second, code, _) = introduce(ours.endpoint(), &hello(WIRE_VERSION, 5, "job")).await;
    assert_eq!(code, LINKED);
    ours.send(NodeId(5), message(0)).await.unwrap();
}

#[tokio::test]
async fn itself_by_another_name_is_itself() {
    let config = TcpConfig { advertise_host: Some("localhost".to_owned()), ..config(1) };
    let (ours, _inbox) = TcpVan::bind(config).await.unwrap();
    let by_number = Endpoint(ours.endpoint().0.replace("localhost", "127.0.0.1"));
    assert_eq!(ours.connect(&by_number).await.unwrap(), NodeId(1));
    assert_eq!(ours.connect(ours.endpoint()).await.unwrap(), NodeId(1));
}

#[tokio::test]
async fn strangers_are_dropped_and_counted() {
    let (ours, mut inbox) = van(1).await;
    let mut long_job = hello(WIRE_VERSION, 5, "job");
    long_job[6] = 255;
    let mut bad_role = hello(WIRE_VERSION, 5, "job");
    bad_role[5] = 99;
    let mut not_text = hello(WIRE_VERSION, 5, "job");
    not_text[16] = 0xff;
    let nonsense = [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 5000], b"kvp".to_vec(), long_job, bad_role, not_text];
    for (index, bytes) in nonsense.iter().enumerate() {
        let mut stream = TcpStream::connect(ours.endpoint().0.strip_prefix("tcp://").unwrap()).await.unwrap();
        // It may hang up before it has read everything.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        hung_up(&mut stream).await;
        // The count is made right after the end of the connection.
        while ours.strangers() <= index as u64 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(ours.strangers(), nonsense.len() as u64);

    // One who is told to go on and says something else.
    let (mut stream, code, _) = introduce(ours.endpoint(), &hello(WIRE_VERSION, 0, "job")).await;
    assert_eq!(code, WELCOME);
    stream.write_all(b"nope").await.unwrap();
    hung_up(&mut stream).await;

    let (friend, _inbox) = van(2).await;
    assert_eq!(friend.connect(ours.endpoint()).await.unwrap(), NodeId(1));
    friend.send(NodeId(1), message(7)).await.unwrap();
    expect_message(&mut inbox, 2, 7).await;
}

#[tokio::test]
async fn strangers_who_say_nothing_are_dropped_and_do_not_keep_others_out() {
    const SLOTS: usize = 4;
    let config =
        TcpConfig { handshake_deadline: Duration::from_millis(300), unfinished_handshakes_max: SLOTS, ..config(1) };
    let (ours, _inbox) = TcpVan::bind(config).await.unwrap();
    let address = ours.endpoint().0.strip_prefix("tcp://").unwrap();
    let mut silent = Vec::new();
    for _ in 0..2 * SLOTS {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // Waits behind them, with its own patience of 5 s.
    let (friend, _inbox) = van(2).await;
    assert_eq!(friend.connect(ours.endpoint()).await.unwrap(), NodeId(1));
    for stream in &mut silent {
        hung_up(stream).await;
    }
}

/// The header of a message that announces this much for its first part.
fn header(part_len: u64) -> [u8; 64] {
    let mut bytes = Header { part_count: 1, ..Header::new(Kind::Push) }.encode();
    bytes[32..40].copy_from_slice(&part_len.to_le_bytes());
    bytes
}

#[tokio::test]
async fn a_linked_peer_that_breaks_the_protocol_loses_its_link_only() {
    let config = TcpConfig { stall_deadline: Duration::from_millis(300), ..config(100) };
    let (ours, mut inbox) = TcpVan::bind(config).await.unwrap();
    let (friend, _inbox) = van(200).await;
    friend.connect(ours.endpoint()).await.unwrap();

    let mut other_kind = header(0);
    other_kind[3] = 200;
    let torn = [&header(1000)[..], &[0; 10]].concat();
    let cases = [
        (header(1 << 63).to_vec(), "announces 9223372036854775808 bytes, at most 536870912 are allowed", false),
        (vec![b'x'; 64], "not a kv message", false),
        (other_kind.to_vec(), "unknown message kind 200", false),
        (torn.clone(), "ended in the middle of a message", true),
        (header(0)[..20].to_vec(), "ended in the middle of a message", true),
        (torn, "paused for 300ms in the middle of a message", false),
        (header(300_000_000).to_vec(), "paused for 300ms in the middle of a message", false),
        (Vec::new(), "closed the connection", true),
    ];
    // Peers with a lower id than ours have to give the go-ahead, those with a higher one have not.
    for (lower, (index, (bytes, expected, ends))) in
        [true, false].into_iter().flat_map(|lower| cases.iter().enumerate().map(move |case| (lower, case)))
    {
        let node = if lower { index as u64 } else { 1000 + index as u64 };
        let (mut stream, code, _) = introduce(ours.endpoint(), &hello(WIRE_VERSION, node, "job")).await;
        assert_eq!(code, WELCOME);
        if lower {
            stream.write_all(b"open").await.unwrap();
        }
        // A good message first: its loss is reported after it.
        stream.write_all(&header(0)).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        if *ends {
            stream.shutdown().await.unwrap();
        }
        expect_message(&mut inbox, node, 0).await;
        let reason = expect_down(&mut inbox, node).await;
        assert!(reason.contains(expected), "{reason}");
        hung_up(&mut stream).await;
        let sent = ours.send(NodeId(node), message(0)).await;
        assert!(matches!(sent, Err(VanError::UnknownPeer(_))), "{sent:?}");

        friend.send(NodeId(100), message(index as u64)).await.unwrap();
        expect_message(&mut inbox, 200, index as u64).await;
    }
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bind = taken.local_addr().unwrap().to_string();
    let error = TcpVan::bind(TcpConfig { bind: bind.clone(), ..config(1) }).await.err().unwrap();
    assert!(
        error.to_string().starts_with(&format!("cannot listen on tcp://{bind}: Address already in use")),
        "{error}"
    );
}

#[tokio::test]
async fn settings_that_can_not_work_are_refused() {
    for (bind, expected) in [
        ("nonsense", "HOST:PORT"),
        ("0.0.0.0:0", "say which host others are to connect to"),
        ("[::]:0", "say which host others are to connect to"),
    ] {
        let error = TcpVan::bind(TcpConfig { bind: bind.to_owned(), ..config(1) }).await.err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = TcpVan::bind(TcpConfig { job: "x".repeat(256), ..config(1) }).await.err().unwrap();
    assert!(error.to_string().contains("255 bytes"), "{error}");
}

#[tokio::test]
async fn the_advertised_address_is_what_others_use() {
    let config = TcpConfig { bind: "0.0.0.0:0".to_owned(), advertise_host: Some("localhost".to_owned()), ..config(1) };
    let (ours, mut inbox) = TcpVan::bind(config).await.unwrap();
    assert!(ours.endpoint().0.starts_with("tcp://localhost:"), "{}", ours.endpoint());
    let (friend, mut friends_inbox) = van(2).await;
    assert_eq!(friend.connect(ours.endpoint()).await.unwrap(), NodeId(1));
    friend.send(NodeId(1), message(1)).await.unwrap();
    expect_message(&mut inbox, 2, 1).await;
    // The friend said where it is reached: connecting there uses the link.
    assert_eq!(ours.connect(friend.endpoint()).await.unwrap(), NodeId(2));
    ours.send(NodeId(2), message(2)).await.unwrap();
    expect_message(&mut friends_inbox, 1, 2).await;

    let config = TcpConfig { advertise_port: Some(4711), ..raw::config(3) };
    let (forwarded, _inbox) = TcpVan::bind(config).await.unwrap();
    assert_eq!(forwarded.endpoint().0, "tcp://127.0.0.1:4711");
}
