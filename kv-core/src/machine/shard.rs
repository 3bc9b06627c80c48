//! A server's share of the values: what is stored, and how a finished round changes it.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;

use super::rank_set::RankSet;
use super::round::{Rounds, Summed};
use super::waiting::WaitId;
use crate::buffer::Buffer;
use crate::cluster::Rank;
use crate::consistency::Consistency;
use crate::dtype::DType;
use crate::error::Rejection;
use crate::key::KeyId;
use crate::updater::{Slice, SliceMut, State, Step, Updater};
use crate::wire::{Entry, KeyMeta, UpdaterSpec};

/// A chunk's name.
pub(super) type ChunkId = (KeyId, u32);

/// The values this server owns.
pub(super) struct Shard {
    metas: HashMap<KeyId, Arc<KeyMeta>>,
    chunks: HashMap<ChunkId, Chunk>,
    /// The updater, with its spec when it came over the wire.
    updater: Option<(Option<UpdaterSpec>, Arc<dyn Updater>)>,
    value_bytes: u64,
    updates: u64,
}

/// One chunk of one value.
pub(super) struct Chunk {
    meta: Arc<KeyMeta>,
    value: Buffer,
    /// Rounds (or asynchronous pushes) applied.
    pub(super) applied: u64,
    pub(super) rounds: Rounds,
    state: State,
    /// Who waits for which round, as (round, wait, index of the entry within the wait).
    pub(super) waiters: Vec<(u64, WaitId, usize)>,
    /// The last round that could not be applied, and why.
    pub(super) fault: Option<(u64, String)>,
}

impl Shard {
    pub(super) fn new() -> Self {
        Self { metas: HashMap::new(), chunks: HashMap::new(), updater: None, value_bytes: 0, updates: 0 }
    }

    pub(super) fn keys(&self) -> u64 {
        self.metas.len() as u64
    }

    pub(super) fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    pub(super) fn meta(&self, key: KeyId) -> Option<&Arc<KeyMeta>> {
        self.metas.get(&key)
    }

    /// Whether chunk 0, which is created last, is here: then the whole value exists, on all servers.
    pub(super) fn is_complete(&self, key: KeyId) -> bool {
        self.chunks.contains_key(&(key, 0))
    }

    pub(super) fn chunk(&self, id: ChunkId) -> Option<&Chunk> {
        self.chunks.get(&id)
    }

    pub(super) fn chunk_mut(&mut self, id: ChunkId) -> Option<&mut Chunk> {
        self.chunks.get_mut(&id)
    }

    pub(super) fn chunks_mut(&mut self) -> impl Iterator<Item = (ChunkId, &mut Chunk)> {
        self.chunks.iter_mut().map(|(id, chunk)| (*id, chunk))
    }

    /// Whether this chunk could be created: nothing is changed.
    pub(super) fn check_create(&self, meta: &KeyMeta, entry: &Entry) -> Result<(), Rejection> {
        if let Some(existing) = self.metas.get(&entry.key) {
            if existing.key != meta.key {
                return Err(Rejection::KeyClash { key: meta.key.clone(), existing: existing.key.clone() });
            }
            if **existing != *meta || self.chunks.contains_key(&(entry.key, entry.chunk)) {
                return Err(Rejection::AlreadyInitialised(meta.key.clone()));
            }
        }
        Ok(())
    }

    /// Creates a chunk that [`Shard::check_create`] allowed.
    pub(super) fn create(&mut self, meta: &Arc<KeyMeta>, entry: &Entry, values: &[u8]) {
        let meta = self.metas.entry(entry.key).or_insert_with(|| Arc::clone(meta));
        let chunk = Chunk {
            meta: Arc::clone(meta),
            value: Buffer::copy_of(values),
            applied: 0,
            rounds: Rounds::default(),
            state: State::default(),
            waiters: Vec::new(),
            fault: None,
        };
        self.value_bytes += values.len() as u64;
        self.chunks.insert((entry.key, entry.chunk), chunk);
    }

    /// Whether the entry names a chunk that is here, with its type and length.
    pub(super) fn check(&self, entry: &Entry) -> Result<(), Rejection> {
        let Some(chunk) = self.chunks.get(&(entry.key, entry.chunk)) else {
            return Err(match self.metas.get(&entry.key) {
                Some(meta) => {
                    Rejection::Malformed(format!("chunk {} of key {} is not on this server", entry.chunk, meta.key))
                }
                None => Rejection::NotInitialised(entry.key),
            });
        };
        let expected = chunk.meta.dtype;
        match DType::from_code(entry.dtype) {
            None => Err(Rejection::Malformed(format!("element type code {}", entry.dtype))),
            Some(found) if found != expected => Err(Rejection::DTypeMismatch { key: entry.key, expected, found }),
            Some(_) if chunk.value.len() as u64 != entry.bytes => Err(Rejection::LengthMismatch {
                key: entry.key,
                expected: chunk.value.len() as u64,
                found: entry.bytes,
            }),
            Some(_) => Ok(()),
        }
    }

    /// Uses another updater. The same updater with other settings keeps what it remembers of the values; another one
    /// starts afresh.
    pub(super) fn set_updater(&mut self, spec: UpdaterSpec, updater: Arc<dyn Updater>) {
        if self.updater_spec().is_none_or(|old| old.name != spec.name) {
            self.forget_states();
        }
        self.updater = Some((Some(spec), updater));
    }

    pub(super) fn set_local_updater(&mut self, updater: Arc<dyn Updater>) {
        self.forget_states();
        self.updater = Some((None, updater));
    }

    fn forget_states(&mut self) {
        self.chunks.values_mut().for_each(|chunk| chunk.state = State::default());
    }

    pub(super) fn updater_spec(&self) -> Option<&UpdaterSpec> {
        self.updater.as_ref()?.0.as_ref()
    }

    /// Applies a contribution at once.
    pub(super) fn apply_now(&mut self, id: ChunkId, values: Bytes) -> Result<(), Rejection> {
        let updater = self.updater.as_ref().map(|(_, updater)| Arc::clone(updater));
        let Some(chunk) = self.chunks.get_mut(&id) else { return Err(Rejection::NotInitialised(id.0)) };
        self.updates += 1;
        chunk.apply(id.1, updater.as_deref(), Summed::Shared(values)).map_err(Rejection::Updater)
    }

    /// Closes the first open round of the chunk if it is complete, and applies it. Returns whether it did.
    pub(super) fn close_round(&mut self, id: ChunkId, required: &RankSet) -> bool {
        let updater = self.updater.as_ref().map(|(_, updater)| Arc::clone(updater));
        let Some(chunk) = self.chunks.get_mut(&id) else { return false };
        let Some(sum) = chunk.rounds.close(required) else { return false };
        self.updates += 1;
        if let Some(sum) = sum.finish(chunk.meta.dtype)
            && let Err(reason) = chunk.apply(id.1, updater.as_deref(), sum)
        {
            chunk.fault = Some((chunk.applied, reason));
        }
        true
    }
}

impl Chunk {
    pub(super) fn consistency(&self) -> Consistency {
        self.meta.consistency
    }

    pub(super) fn dtype(&self) -> DType {
        self.meta.dtype
    }

    /// The value as it is now: shared, so later updates do not change what was given out.
    pub(super) fn share(&self) -> Bytes {
        self.value.share()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.value.bytes()
    }

    /// The round that holds this worker's last contribution.
    pub(super) fn contributed(&self, rank: Rank) -> u64 {
        self.applied + self.rounds.contributed(rank) as u64
    }

    fn apply(&mut self, number: u32, updater: Option<&dyn Updater>, sum: Summed) -> Result<(), String> {
        self.applied += 1;
        let Some(updater) = updater else {
            // Without an updater the value becomes the sum.
            match sum {
                Summed::Owned(sum) => self.value = sum,
                Summed::Shared(values) => {
                    // Replaced, not copied on write: nothing of the old value would survive anyway.
                    if self.value.is_shared() {
                        self.value = Buffer::copy_of(&values);
                    } else {
                        self.value.bytes_mut().copy_from_slice(&values);
                    }
                }
            }
            return Ok(());
        };
        let step = Step { meta: &self.meta, chunk: number, count: self.applied };
        let dtype = self.meta.dtype;
        let aligned;
        let gradient = if sum.bytes().as_ptr().align_offset(dtype.size()) == 0 {
            sum.bytes()
        } else {
            aligned = Buffer::copy_of(sum.bytes());
            aligned.bytes()
        };
        let weight = SliceMut::new(dtype, self.value.bytes_mut());
        updater.update(&step, weight, &mut self.state, Slice::new(dtype, gradient))
    }
}
