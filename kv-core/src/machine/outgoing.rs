//! Cutting a call into messages: chunk by chunk, one batch per server, small keys sharing a message.

use bytes::Bytes;

use super::server_link::{Expected, Prepared};
use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::key::{Key, KeyId};
use crate::limits::{MESSAGE_ENTRIES_MAX, MESSAGE_VALUE_BYTES};
use crate::wire::{DataError, Entry, KeyMeta, Kind, Message, encode_part, entries_part};

/// Most bytes of encoded metadata or names in one message.
const META_BYTES: usize = 256 * 1024;

/// Collects the entries of one call for all servers.
pub(super) struct Batches {
    kind: Kind,
    chunk_bytes: u64,
    open: Vec<Batch>,
    done: Vec<(usize, Prepared)>,
}

#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    metas: Vec<KeyMeta>,
    meta_bytes: usize,
    values: Vec<Bytes>,
    bytes: usize,
    fills: Vec<Fill>,
}

/// Where a received chunk goes: bytes `offset..offset + len` of result `result`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) result: usize,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Batches {
    /// For a call of this kind on this many servers.
    pub(super) fn new(kind: Kind, servers: usize, chunk_bytes: u64) -> Self {
        Self { kind, chunk_bytes, open: (0..servers).map(|_| Batch::default()).collect(), done: Vec::new() }
    }

    /// Adds a chunk. `values` are its bytes when the call sends some; `meta` belongs to an `init`.
    pub(super) fn add(
        &mut self,
        server: usize,
        (key, chunk, dtype): (KeyId, u32, DType),
        fill: Fill,
        values: Option<Bytes>,
        meta: Option<&KeyMeta>,
    ) -> Result<(), DataError> {
        let len = fill.len as usize;
        let batch = &self.open[server];
        // A full chunk travels alone: it is received into a buffer of its own, and answered from the value's memory.
        let alone = fill.len >= self.chunk_bytes;
        let full = batch.bytes + len > MESSAGE_VALUE_BYTES
            || batch.entries.len() == MESSAGE_ENTRIES_MAX
            || batch.meta_bytes > META_BYTES;
        if !batch.entries.is_empty() && (alone || full) {
            self.flush(server)?;
        }
        let batch = &mut self.open[server];
        batch.entries.push(Entry::new(key, chunk, dtype, fill.len));
        batch.bytes += len;
        batch.fills.push(fill);
        batch.values.extend(values);
        if let Some(meta) = meta
            && batch.metas.last().is_none_or(|last| last.key != meta.key)
        {
            batch.meta_bytes += encoded_len(&meta.key) + 16 + 8 * meta.shape.len();
            batch.metas.push(meta.clone());
        }
        if alone { self.flush(server) } else { Ok(()) }
    }

    /// The messages, in order, each with the index of its server.
    pub(super) fn finish(mut self) -> Result<Vec<(usize, Prepared)>, DataError> {
        for server in 0..self.open.len() {
            self.flush(server)?;
        }
        Ok(self.done)
    }

    fn flush(&mut self, server: usize) -> Result<(), DataError> {
        let batch = std::mem::take(&mut self.open[server]);
        if batch.entries.is_empty() {
            return Ok(());
        }
        let mut message = Message::new(self.kind).with_part(0, entries_part(&batch.entries));
        if !batch.metas.is_empty() {
            message = message.with_part(1, encode_part(&batch.metas)?);
        }
        let sends_values = self.kind != Kind::Pull;
        if sends_values {
            message = message.with_part(3, join(batch.values, batch.bytes));
        }
        let expected = match self.kind {
            Kind::Pull | Kind::PushPull => Expected::Values(batch.fills),
            _ => Expected::Nothing,
        };
        let mut keys: Vec<KeyId> = batch.entries.iter().map(|entry| entry.key).collect();
        keys.dedup();
        self.done.push((server, Prepared { message, keys, expected }));
        Ok(())
    }
}

/// One part of many pieces; a single piece is not copied.
fn join(pieces: Vec<Bytes>, total: usize) -> Bytes {
    if let [piece] = pieces.as_slice() {
        return piece.clone();
    }
    let mut joined = Buffer::recycled(total);
    let mut rest = joined.bytes_mut();
    for piece in pieces {
        let (here, after) = rest.split_at_mut(piece.len());
        here.copy_from_slice(&piece);
        rest = after;
    }
    joined.share()
}

/// Questions about keys, cut so that names of any length fit.
pub(super) fn describe_messages(keys: &[Key], wait: bool) -> Result<Vec<Prepared>, DataError> {
    let mut messages = Vec::new();
    let mut rest = keys;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take_while(|key| {
                bytes += encoded_len(key);
                bytes <= META_BYTES
            })
            .count()
            .max(1);
        let (now, later) = rest.split_at(count);
        let message = Message::new(Kind::Describe).with_part(1, encode_part(&(now, wait))?);
        let ids = now.iter().map(Key::id).collect();
        messages.push(Prepared { message, keys: ids, expected: Expected::Description(now.to_vec()) });
        rest = later;
    }
    Ok(messages)
}

fn encoded_len(key: &Key) -> usize {
    match key {
        Key::Int(_) => 11,
        Key::Name(name) => 4 + name.len(),
    }
}
