//! The records in part 0 of a data request: which chunk, how many bytes.

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;

use super::data::DataError;
use crate::dtype::DType;
use crate::key::KeyId;
use crate::limits::MESSAGE_ENTRIES_MAX;

/// Bytes of one record.
pub const ENTRY_BYTES: usize = 24;

/// One chunk of one key. In a request with values, the values of all entries lie one after another in part 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    /// The key.
    pub key: KeyId,
    /// Bytes of this chunk.
    pub bytes: u64,
    /// Number of the chunk within its value.
    pub chunk: u32,
    /// Wire code of the element type.
    pub dtype: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

impl Entry {
    /// A record.
    #[must_use]
    pub fn new(key: KeyId, chunk: u32, dtype: DType, bytes: u64) -> Self {
        Self { key, bytes, chunk, dtype: dtype.code(), reserved: [0; 3] }
    }
}

/// The records as a part.
#[must_use]
pub fn entries_part(entries: &[Entry]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(entries))
}

/// Reads the records of a part.
///
/// # Errors
/// [`DataError`] when the part is not a whole number of records or has too many.
pub fn entries_of(part: &Bytes) -> Result<Vec<Entry>, DataError> {
    if !part.len().is_multiple_of(ENTRY_BYTES) {
        return Err(DataError(format!("{} bytes of entries are not a multiple of {ENTRY_BYTES}", part.len())));
    }
    let count = part.len() / ENTRY_BYTES;
    if count > MESSAGE_ENTRIES_MAX {
        return Err(DataError(format!("{count} entries in one message, at most {MESSAGE_ENTRIES_MAX}")));
    }
    let entries: Vec<Entry> = match bytemuck::try_cast_slice(part) {
        Ok(entries) => entries.to_vec(),
        Err(_) => part.chunks_exact(ENTRY_BYTES).map(bytemuck::pod_read_unaligned).collect(),
    };
    if entries.iter().any(|entry| entry.reserved != [0; 3]) {
        return Err(DataError("an entry with reserved bytes that are not zero".to_owned()));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_at_any_alignment() {
        let entries = [Entry::new(KeyId(7), 1, DType::F64, 80), Entry::new(KeyId(u64::MAX), u32::MAX, DType::I8, 1)];
        let part = entries_part(&entries);
        assert_eq!(entries_of(&part).unwrap(), entries);
        let mut shifted = vec![0];
        shifted.extend_from_slice(&part);
        assert_eq!(entries_of(&Bytes::from(shifted).slice(1..)).unwrap(), entries);
        assert!(entries_of(&part.slice(1..)).is_err());
        let unknown = Entry { reserved: [0, 0, 1], ..entries[0] };
        assert!(entries_of(&entries_part(&[unknown])).is_err());
    }
}
