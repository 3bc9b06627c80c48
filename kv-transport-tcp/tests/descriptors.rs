//! What happens when the process has no file descriptor left. In a program of its own, because it takes them all.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test itself")]

mod raw;

use std::fs::File;

use kv_core::van::Van;
use kv_core::wire::WIRE_VERSION;
use raw::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;

/// A machine that lets one process open more files than this is not worth the time.
const FILES_MAX: usize = 200_000;

#[tokio::test]
async fn accepting_goes_on_once_there_are_descriptors_again() {
    let (ours, _inbox) = van(1).await;
    // Made before there is none left.
    let socket = TcpSocket::new_v4().unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
        if files.len() == FILES_MAX {
            eprintln!("not tried: more than {FILES_MAX} files may be open");
            return;
        }
    }
    let address = ours.endpoint().0.strip_prefix("tcp://").unwrap().parse().unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(&hello(WIRE_VERSION, 2, "job")).await.unwrap();
    let mut fixed = [0; 16];
    let early = timeout(std::time::Duration::from_millis(300), stream.read_exact(&mut fixed)).await;
    assert!(early.is_err(), "accepted without a descriptor: {early:?}");
    drop(files);
    timeout(FOREVER, stream.read_exact(&mut fixed)).await.expect("an answer in time").unwrap();
    assert_eq!(fixed[5], WELCOME);
}
