//! The reader of a link: bytes from the socket become messages in the inbox.

use std::io;
use std::time::Duration;

use kv_core::Buffer;
use kv_core::cluster::NodeId;
use kv_core::van::{InboxSender, VanEvent};
use kv_core::wire::{DecodeError, HEADER_BYTES, Header, Message, PARTS};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

/// Bytes read ahead, so that many small messages come with one system call.
const AHEAD_BYTES: usize = 64 * 1024;

/// What is still missing of a part from here on is read right into its memory instead of through the read buffer.
const DIRECT_BYTES: usize = 16 * 1024;

/// How a stream ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// Between two messages.
    #[error("it closed the connection")]
    Closed,
    /// Within a message.
    #[error("the connection ended in the middle of a message")]
    Torn,
    /// Nothing came for too long within a message.
    #[error("it paused for {0:?} in the middle of a message")]
    Stalled(Duration),
    /// It broke the protocol.
    #[error("it broke the protocol: {0}")]
    Protocol(#[from] DecodeError),
    /// The operating system's word.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads messages from a stream.
pub(crate) struct Reader<S> {
    stream: S,
    part_bytes_max: u64,
    stall_deadline: Duration,
    ahead: Box<[u8]>,
    /// The part of `ahead` that was read and not yet used.
    start: usize,
    end: usize,
}

impl<S: AsyncRead + Unpin> Reader<S> {
    pub(crate) fn new(stream: S, part_bytes_max: u64, stall_deadline: Duration) -> Self {
        let ahead = vec![0; AHEAD_BYTES].into_boxed_slice();
        Self { stream, part_bytes_max, stall_deadline, ahead, start: 0, end: 0 }
    }

    /// Delivers every message to the inbox until the stream ends. When nobody will read the inbox, the rest is
    /// thrown away: the node may still be sending.
    pub(crate) async fn deliver_all(&mut self, from: NodeId, inbox: &InboxSender) -> End {
        loop {
            match self.deliver_next(from, inbox).await {
                Ok(true) => {}
                Ok(false) => return self.discard_all().await,
                Err(end) => return end,
            }
        }
    }

    async fn deliver_next(&mut self, from: NodeId, inbox: &InboxSender) -> Result<bool, End> {
        let header = self.header().await?;
        // Four checked lengths; the sum can not overflow for any limit a machine could keep, but peers choose them.
        let body_bytes = header.part_len.into_iter().fold(0_u64, u64::saturating_add);
        let reserved = inbox.reserve(body_bytes).await;
        let mut parts: [_; PARTS] = Default::default();
        for (part, len) in parts.iter_mut().zip(header.part_len) {
            if len > 0 {
                *part = self.part(len).await?.share();
            }
        }
        let message = Message::from_parts(header, parts);
        Ok(inbox.deliver(reserved, VanEvent::Message { from, message }).await)
    }

    /// Reads and throws away everything up to the end of the stream.
    pub(crate) async fn discard_all(&mut self) -> End {
        loop {
            match self.stream.read(&mut self.ahead).await {
                Ok(0) => return End::Closed,
                Ok(_) => {}
                Err(error) => return End::Io(error),
            }
        }
    }

    async fn header(&mut self) -> Result<Header, End> {
        loop {
            if let Some((bytes, _)) = self.ahead[self.start..self.end].split_first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(bytes, self.part_bytes_max)?;
                self.start += HEADER_BYTES;
                return Ok(header);
            }
            if self.start < self.end {
                self.read_ahead().await?;
            } else {
                // Between messages there is no deadline, and the end of the stream is a good one.
                (self.start, self.end) = (0, self.stream.read(&mut self.ahead).await?);
                if self.end == 0 {
                    return Err(End::Closed);
                }
            }
        }
    }

    async fn part(&mut self, len: u64) -> Result<Buffer, End> {
        // Checked against the limit with the header; fresh memory is not touched before bytes arrive for it.
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut buffer = Buffer::recycled(len);
        let bytes = buffer.bytes_mut();
        let mut filled = 0;
        loop {
            let count = (self.end - self.start).min(len - filled);
            bytes[filled..filled + count].copy_from_slice(&self.ahead[self.start..self.start + count]);
            self.start += count;
            filled += count;
            if filled == len {
                return Ok(buffer);
            }
            if len - filled < DIRECT_BYTES {
                self.read_ahead().await?;
                continue;
            }
            match timeout(self.stall_deadline, self.stream.read(&mut bytes[filled..])).await {
                Ok(Ok(0)) => return Err(End::Torn),
                Ok(read) => filled += read?,
                Err(_) => return Err(End::Stalled(self.stall_deadline)),
            }
        }
    }

    /// Reads more behind what is there, within a message.
    async fn read_ahead(&mut self) -> Result<(), End> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match timeout(self.stall_deadline, self.stream.read(&mut self.ahead[self.end..])).await {
            Ok(Ok(0)) => Err(End::Torn),
            Ok(read) => {
                self.end += read?;
                Ok(())
            }
            Err(_) => Err(End::Stalled(self.stall_deadline)),
        }
    }
}
