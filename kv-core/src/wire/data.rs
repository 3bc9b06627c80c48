//! Structured parts of data requests, encoded with postcard.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::consistency::Consistency;
use crate::dtype::DType;
use crate::key::Key;
use crate::limits::{CONTROL_BYTES_MAX, KEY_NAME_BYTES_MAX, SHAPE_DIMS_MAX};
use crate::tensor::byte_len;

/// A part that no version of this program writes; the text says what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataError(pub String);

/// What is fixed about a key at `init`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyMeta {
    /// The key, with its name.
    pub key: Key,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<u64>,
    /// When pushes are applied and pulls answered.
    pub consistency: Consistency,
}

impl KeyMeta {
    /// Bytes of the whole value.
    ///
    /// # Errors
    /// [`DataError`] when the metadata cannot describe a value: too many dimensions, too long a name, overflow.
    pub fn value_bytes(&self) -> Result<u64, DataError> {
        if self.shape.len() > SHAPE_DIMS_MAX {
            return Err(DataError(format!("{} dimensions, at most {SHAPE_DIMS_MAX}", self.shape.len())));
        }
        if let Key::Name(name) = &self.key
            && name.len() > KEY_NAME_BYTES_MAX
        {
            return Err(DataError(format!("a key name of {} bytes, at most {KEY_NAME_BYTES_MAX}", name.len())));
        }
        byte_len(self.dtype, &self.shape)
            .ok_or_else(|| DataError(format!("shape {:?} has more bytes than 64 bits count", self.shape)))
    }
}

/// An updater as it travels: a name that the server knows, and its settings as text. Data, never code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdaterSpec {
    /// Which updater.
    pub name: String,
    /// Its settings, in the form that updater defines (JSON for those of `kv-optim`).
    pub settings: String,
}

/// Encodes a structured part.
///
/// # Errors
/// [`DataError`] when it is longer than [`CONTROL_BYTES_MAX`].
pub fn encode_part<T: Serialize>(value: &T) -> Result<Bytes, DataError> {
    let bytes = postcard::to_stdvec(value).map_err(|error| DataError(error.to_string()))?;
    if bytes.len() > CONTROL_BYTES_MAX {
        return Err(DataError(format!("{} bytes encoded, at most {CONTROL_BYTES_MAX}", bytes.len())));
    }
    Ok(Bytes::from(bytes))
}

/// Decodes a structured part completely: bytes left over are an error.
///
/// # Errors
/// [`DataError`] for anything [`encode_part`] would not have written.
pub fn decode_part<T: DeserializeOwned>(part: &[u8]) -> Result<T, DataError> {
    if part.len() > CONTROL_BYTES_MAX {
        return Err(DataError(format!("{} bytes to decode, at most {CONTROL_BYTES_MAX}", part.len())));
    }
    match postcard::take_from_bytes(part) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(DataError(format!("{} bytes left over", rest.len()))),
        Err(error) => Err(DataError(error.to_string())),
    }
}
