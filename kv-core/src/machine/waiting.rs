//! Requests that wait at a server: each has a deadline, and what it waits for is known.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Bytes;
use hashbrown::HashMap;

use super::shard::ChunkId;
use crate::buffer::Buffer;
use crate::cluster::NodeId;
use crate::key::Key;

/// Number of a wait, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct WaitId(u64);

/// One request that cannot be answered yet.
pub(super) struct Wait {
    pub(super) worker: NodeId,
    pub(super) sequence: u64,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    /// How many of its entries are not ready.
    pub(super) remaining: usize,
    pub(super) what: Waited,
}

/// What the request asked for.
pub(super) enum Waited {
    /// Values.
    Pull(Gather),
    /// The acknowledgement of a push that is far ahead of the others.
    Push(Vec<ChunkId>),
    /// The metadata of keys that somebody else initialises.
    Describe(Vec<Key>),
}

/// All waits of a server.
#[derive(Default)]
pub(super) struct Waiting {
    waits: HashMap<WaitId, Wait>,
    deadlines: BTreeSet<(Instant, WaitId)>,
    next: u64,
}

impl Waiting {
    pub(super) fn next_id(&mut self) -> WaitId {
        self.next += 1;
        WaitId(self.next)
    }

    pub(super) fn insert(&mut self, id: WaitId, wait: Wait) {
        self.deadlines.insert((wait.deadline, id));
        self.waits.insert(id, wait);
    }

    pub(super) fn get_mut(&mut self, id: WaitId) -> Option<&mut Wait> {
        self.waits.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: WaitId) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        self.deadlines.remove(&(wait.deadline, id));
        Some(wait)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The wait whose deadline has come.
    pub(super) fn expired(&self, now: Instant) -> Option<WaitId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }

    /// All waits, in the order of their beginning.
    pub(super) fn ids(&self) -> Vec<WaitId> {
        let mut ids: Vec<_> = self.waits.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn get(&self, id: WaitId) -> Option<&Wait> {
        self.waits.get(&id)
    }
}

impl Wait {
    /// The chunks it waits for (or has waited for).
    pub(super) fn chunks(&self) -> Vec<ChunkId> {
        match &self.what {
            Waited::Pull(gather) => gather.chunks.clone(),
            Waited::Push(chunks) => chunks.clone(),
            Waited::Describe(_) => Vec::new(),
        }
    }
}

/// Collects the values of a pull's entries into one part. A pull of one chunk shares the chunk's own memory.
pub(super) struct Gather {
    chunks: Vec<ChunkId>,
    /// Where each entry's bytes go.
    offsets: Vec<usize>,
    buffer: Buffer,
    shared: Option<Bytes>,
}

impl Gather {
    /// For entries of these lengths.
    pub(super) fn new(entries: &[(ChunkId, usize)]) -> Self {
        let mut total = 0;
        let mut offsets = Vec::with_capacity(entries.len());
        for (_, len) in entries {
            offsets.push(total);
            total += len;
        }
        let buffer = if entries.len() == 1 { Buffer::default() } else { Buffer::recycled(total) };
        Self { chunks: entries.iter().map(|(id, _)| *id).collect(), offsets, buffer, shared: None }
    }

    /// Takes over the bytes of entry `index` as they are now; `share` gives them as shared memory.
    pub(super) fn put(&mut self, index: usize, bytes: &[u8], share: impl FnOnce() -> Bytes) {
        if self.offsets.len() == 1 {
            self.shared = Some(share());
        } else {
            let offset = self.offsets[index];
            self.buffer.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The part.
    pub(super) fn finish(self) -> Bytes {
        self.shared.unwrap_or_else(|| self.buffer.share())
    }
}
