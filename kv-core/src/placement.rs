//! Which server owns which chunk of which key: a pure function of the roster.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::cluster::Rank;
use crate::key::KeyId;
use crate::limits::SLOTS;

/// Slot -> rank of the server that owns it. Part of the roster, versioned by its epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotMap(Vec<Rank>);

impl SlotMap {
    /// Slots dealt out to `servers` in turn, so that consecutive chunks of one value lie on different servers.
    ///
    /// # Panics
    /// When there is no server: a job has at least one, checked where its size is read.
    #[must_use]
    pub fn even(servers: u16) -> Self {
        assert!(servers > 0, "a job has at least one server");
        Self((0..SLOTS).map(|slot| Rank(slot % servers)).collect())
    }

    /// Whether it has an owner below `servers` for every slot: what a received map must satisfy to be used.
    #[must_use]
    pub fn is_valid(&self, servers: usize) -> bool {
        self.0.len() == usize::from(SLOTS) && self.0.iter().all(|rank| usize::from(rank.0) < servers)
    }

    /// Rank of the server that owns chunk `chunk` of `key`.
    #[must_use]
    pub fn owner(&self, key: KeyId, chunk: u32) -> Rank {
        self.0[usize::from(slot(key, chunk))]
    }
}

/// The slot of a chunk: `(hash(key) + chunk) mod SLOTS`.
#[must_use]
pub fn slot(key: KeyId, chunk: u32) -> u16 {
    (key.mix().wrapping_add(u64::from(chunk)) % u64::from(SLOTS)) as u16
}

/// How a value is cut: every chunk but the last has `chunk_bytes` bytes; an empty value has one empty chunk, so that
/// it lives somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    value_bytes: u64,
    chunk_bytes: u64,
}

impl Chunks {
    /// Cuts `value_bytes` into chunks of `chunk_bytes`.
    ///
    /// # Panics
    /// When `chunk_bytes` is zero: checked where a job's settings are read.
    #[must_use]
    pub fn new(value_bytes: u64, chunk_bytes: u64) -> Self {
        assert!(chunk_bytes > 0, "a chunk has at least one byte");
        Self { value_bytes, chunk_bytes }
    }

    /// How many chunks; `None` when more than chunk numbers can count.
    #[must_use]
    pub fn count(&self) -> Option<u32> {
        u32::try_from(self.value_bytes.div_ceil(self.chunk_bytes).max(1)).ok()
    }

    /// The bytes of the value that chunk `chunk` holds.
    #[must_use]
    pub fn range(&self, chunk: u32) -> Range<u64> {
        let start = (u64::from(chunk) * self.chunk_bytes).min(self.value_bytes);
        start..(start + self.chunk_bytes).min(self.value_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_value_exactly_once() {
        for value_bytes in [0, 1, 7, 8, 9, 100, 1000] {
            for chunk_bytes in [1, 8, 9, 1000, u64::MAX] {
                let chunks = Chunks::new(value_bytes, chunk_bytes);
                let count = chunks.count().unwrap();
                assert!(count >= 1);
                let mut next = 0;
                for chunk in 0..count {
                    let range = chunks.range(chunk);
                    assert_eq!(range.start, next);
                    next = range.end;
                }
                assert_eq!(next, value_bytes);
            }
        }
    }

    #[test]
    fn consecutive_chunks_go_to_different_servers() {
        let map = SlotMap::even(3);
        let owners: Vec<u16> = (0..6).map(|chunk| map.owner(KeyId(7), chunk).0).collect();
        assert!(owners.windows(2).all(|pair| pair[0] != pair[1]), "{owners:?}");
        assert!(map.is_valid(3) && !map.is_valid(2));
    }
}
