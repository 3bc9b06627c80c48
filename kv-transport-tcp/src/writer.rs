//! The writer task of a link: takes what is queued and writes it with few system calls and no copy.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::Bytes;
use kv_core::van::Outgoing;
use kv_core::wire::{HEADER_BYTES, Message};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};

/// Slices given to one system call. More than this rarely fits the kernel's buffer.
const SLICES: usize = 64;

/// Writes the end of the handshake and then what is queued, until the van closes; then what is left, and the end of
/// the stream.
pub(crate) async fn write(
    mut socket: OwnedWriteHalf,
    handshake: Vec<u8>,
    mut queue: mpsc::Receiver<Outgoing>,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    socket.write_all(&handshake).await?;
    let mut taken = Vec::new();
    let mut batch = Batch::default();
    let mut is_closing = false;
    loop {
        tokio::select! {
            count = queue.recv_many(&mut taken, SLICES) => {
                if count == 0 {
                    break;
                }
            }
            // Closing the queue makes it end after what is in it.
            _ = closing.wait_for(|closing| *closing), if !is_closing => {
                is_closing = true;
                queue.close();
            }
        }
        taken.drain(..).for_each(|outgoing| batch.push(outgoing));
        while !batch.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = batch.slices(&mut slices);
            match socket.write_vectored(&slices[..count]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => batch.advance(written),
            }
            while batch.messages.len() < SLICES
                && let Ok(outgoing) = queue.try_recv()
            {
                batch.push(outgoing);
            }
        }
    }
    socket.shutdown().await
}

/// Messages that are being written, in order.
#[derive(Default)]
struct Batch {
    messages: VecDeque<Encoded>,
    /// Bytes of the first message that are written already.
    written: usize,
}

struct Encoded {
    header: [u8; HEADER_BYTES],
    outgoing: Outgoing,
}

impl Encoded {
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let message: &Message = &self.outgoing.message;
        [&self.header[..]].into_iter().chain(message.parts().iter().map(Bytes::as_ref))
    }
}

impl Batch {
    fn push(&mut self, outgoing: Outgoing) {
        self.messages.push_back(Encoded { header: outgoing.message.header().encode(), outgoing });
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Fills `slices` with what is to be written next; returns how many there are.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.written;
        let pieces = self.messages.iter().flat_map(Encoded::pieces).filter_map(|piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            Some(&piece[skipped..]).filter(|rest| !rest.is_empty())
        });
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// Takes note that `count` more bytes are written; messages that are through release their memory and room.
    fn advance(&mut self, count: usize) {
        self.written += count;
        while let Some(first) = self.messages.front() {
            let len = first.pieces().map(<[u8]>::len).sum();
            if self.written < len {
                break;
            }
            self.written -= len;
            self.messages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_core::cluster::NodeId;
    use kv_core::van::QueueLimits;
    use kv_core::wire::Kind;

    use super::*;
    use crate::link::Link;

    /// Whatever the kernel takes at a time, the bytes come out the same.
    #[tokio::test]
    async fn partial_writes_lose_and_repeat_nothing() {
        let (link, mut queue) = Link::new(NodeId(1), QueueLimits { messages: 64, bytes: 1 << 20 });
        let mut expected = Vec::new();
        for index in 0..30_usize {
            let mut message = Message::new(Kind::Push);
            for part in 0..index % 5 {
                message = message.with_part(part, Bytes::from(vec![index as u8; (index * 7 + part * 3) % 40]));
            }
            expected.extend_from_slice(&message.header().encode());
            message.parts().iter().for_each(|part| expected.extend_from_slice(part));
            link.send(message).await.unwrap();
        }
        let mut batch = Batch::default();
        while let Ok(outgoing) = queue.try_recv() {
            batch.push(outgoing);
        }
        let mut written = Vec::new();
        for step in 1.. {
            let mut slices = [IoSlice::new(&[]); 5];
            let count = batch.slices(&mut slices);
            if count == 0 {
                break;
            }
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            let taken = bytes.len().min(step % 97 + 1);
            written.extend_from_slice(&bytes[..taken]);
            batch.advance(taken);
        }
        assert!(batch.is_empty());
        assert_eq!(written, expected);
    }
}
