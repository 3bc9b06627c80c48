//! What a worker knows of the keys it has initialised or asked about.

use hashbrown::HashMap;

use super::calls::Value;
use crate::consistency::Consistency;
use crate::error::Error;
use crate::key::{Key, KeyId};
use crate::placement::Chunks;
use crate::tensor::byte_len;
use crate::wire::KeyMeta;

/// By id, so that a clash of two keys is seen.
#[derive(Default)]
pub(super) struct KnownKeys {
    keys: HashMap<KeyId, Known>,
}

pub(super) struct Known {
    pub(super) meta: KeyMeta,
    pub(super) bytes: u64,
    pub(super) chunks: Chunks,
    pub(super) count: u32,
}

impl Known {
    fn new(meta: KeyMeta, chunk_bytes: u64) -> Result<Self, Error> {
        let bytes = meta.value_bytes().map_err(|error| Error::Protocol(error.0))?;
        let chunks = Chunks::new(bytes, chunk_bytes);
        let count = chunks.count().ok_or_else(|| Error::Limit {
            what: format!("the number of chunks of key {}", meta.key),
            limit: u64::from(u32::MAX),
            found: bytes / chunk_bytes,
        })?;
        Ok(Self { meta, bytes, chunks, count })
    }

    /// Whether a value may be pushed to this key.
    pub(super) fn check(&self, value: &Value) -> Result<(), Error> {
        let meta = &self.meta;
        if value.dtype != meta.dtype {
            let key = Some(meta.key.clone());
            return Err(Error::DTypeMismatch { key, expected: meta.dtype, found: value.dtype });
        }
        let found = match &value.shape {
            Some(shape) => shape.clone(),
            None if value.buffer.len() as u64 == self.bytes => return Ok(()),
            None => vec![(value.buffer.len() / value.dtype.size()) as u64],
        };
        if found == meta.shape {
            Ok(())
        } else {
            Err(Error::ShapeMismatch { key: meta.key.clone(), expected: meta.shape.clone(), found })
        }
    }

    /// Whether two workers give a key the same element type and shape.
    pub(super) fn check_agrees(&self, other: &KeyMeta) -> Result<(), Error> {
        let meta = &self.meta;
        if other.dtype != meta.dtype {
            let key = Some(meta.key.clone());
            return Err(Error::DTypeMismatch { key, expected: meta.dtype, found: other.dtype });
        }
        if other.shape != meta.shape {
            let (expected, found) = (meta.shape.clone(), other.shape.clone());
            return Err(Error::ShapeMismatch { key: meta.key.clone(), expected, found });
        }
        Ok(())
    }
}

/// Whether the key's consistency is that of this store.
pub(super) fn check_consistency(meta: &KeyMeta, ours: Consistency) -> Result<(), Error> {
    if meta.consistency == ours {
        Ok(())
    } else {
        Err(Error::ConsistencyMismatch { key: meta.key.clone(), expected: meta.consistency, found: ours })
    }
}

impl KnownKeys {
    /// The entry of this key; an error when its id belongs to another key.
    pub(super) fn find(&self, key: &Key) -> Result<Option<&Known>, Error> {
        match self.keys.get(&key.id()) {
            Some(known) if known.meta.key != *key => {
                Err(Error::KeyClash { key: key.clone(), existing: known.meta.key.clone() })
            }
            found => Ok(found),
        }
    }

    pub(super) fn learn(&mut self, meta: KeyMeta, chunk_bytes: u64) -> Result<&Known, Error> {
        let id = meta.key.id();
        let known = Known::new(meta, chunk_bytes)?;
        Ok(self.keys.entry(id).insert(known).into_mut())
    }

    /// The key behind an id, for error messages.
    pub(super) fn name(&self, id: KeyId) -> Key {
        self.keys.get(&id).map_or(Key::Int(id.0), |known| known.meta.key.clone())
    }
}

/// The keys of an `init`, each once, each describable.
pub(super) fn check_init(metas: &[KeyMeta], chunk_bytes: u64) -> Result<(), Error> {
    let mut seen: HashMap<KeyId, &Key> = HashMap::with_capacity(metas.len());
    for meta in metas {
        meta.value_bytes().map_err(|error| Error::Config(format!("key {}: {error}", meta.key)))?;
        if byte_len(meta.dtype, &meta.shape).and_then(|bytes| Chunks::new(bytes, chunk_bytes).count()).is_none() {
            let limit = u64::from(u32::MAX);
            return Err(Error::Limit {
                what: format!("the number of chunks of key {}", meta.key),
                limit,
                found: u64::MAX,
            });
        }
        match seen.insert(meta.key.id(), &meta.key) {
            None => {}
            Some(other) if *other == meta.key => return Err(Error::AlreadyInitialised { key: meta.key.clone() }),
            Some(other) => return Err(Error::KeyClash { key: meta.key.clone(), existing: other.clone() }),
        }
    }
    Ok(())
}
