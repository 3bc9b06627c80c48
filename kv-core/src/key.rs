//! Keys: what users call an entry, and the 64 bits that travel.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of one entry of the store: a string or a 64-bit integer.
///
/// Both kinds may live in one store. What travels is [`Key::id`]; two different keys with the same id are refused
/// with a typed error when the second is initialised, never silently merged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// A 64-bit integer of any value. Negative numbers come in by `Key::from(-1_i64)`, which keeps all 64 bits.
    Int(u64),
    /// A name: any UTF-8, the empty string included.
    Name(String),
}

/// The 64 bits by which a key is known on the wire and in placement.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    bytemuck::Pod,
    bytemuck::Zeroable,
)]
#[repr(transparent)]
pub struct KeyId(pub u64);

impl Key {
    /// The wire id: the integer itself, or a stable 64-bit hash of the name (FNV-1a, then the finaliser of
    /// [`KeyId::mix`]). It is part of the wire format and never changes between versions.
    #[must_use]
    pub fn id(&self) -> KeyId {
        match self {
            Self::Int(id) => KeyId(*id),
            Self::Name(name) => {
                let mut hash = 0xcbf2_9ce4_8422_2325_u64;
                for byte in name.as_bytes() {
                    hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
                }
                KeyId(KeyId(hash).mix())
            }
        }
    }
}

impl KeyId {
    /// Spreads the id over all 64 bits (the finaliser of SplitMix64), so that consecutive integers do not all start
    /// on neighbouring slots. Used by placement; stable for ever.
    #[must_use]
    pub fn mix(self) -> u64 {
        let mut x = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(id) => write!(f, "{id}"),
            Self::Name(name) => write!(f, "'{}'", name.escape_debug()),
        }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:016x}", self.0)
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<&&str> for Key {
    fn from(name: &&str) -> Self {
        Self::Name((*name).to_owned())
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

impl From<&String> for Key {
    fn from(name: &String) -> Self {
        Self::Name(name.clone())
    }
}

/// Integers keep their 64-bit two's-complement pattern, so `-1_i64` and `u64::MAX` name the same entry.
macro_rules! int_keys {
    ($($int:ty),*) => {$(
        impl From<$int> for Key {
            fn from(id: $int) -> Self {
                #[allow(clippy::cast_sign_loss, clippy::cast_lossless, reason = "the bit pattern is the key")]
                Self::Int(id as i128 as u64)
            }
        }
        impl From<&$int> for Key {
            fn from(id: &$int) -> Self {
                Self::from(*id)
            }
        }
    )*};
}
int_keys!(i32, u32, i64, u64, usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_keys_keep_all_their_bits() {
        assert_eq!(Key::from(-1_i64), Key::Int(u64::MAX));
        assert_eq!(Key::from(-1_i32), Key::Int(u64::MAX));
        assert_eq!(Key::from(u64::MAX).id(), KeyId(u64::MAX));
        // MXNet truncated keys to 32 bits: these two were one entry there.
        assert_ne!(Key::from((1_u64 << 32) + 2).id(), Key::from(2).id());
    }

    #[test]
    fn ids_of_names_are_stable() {
        // These numbers are part of the wire format: a change here breaks running clusters and saved files.
        assert_eq!(Key::from("").id(), KeyId(0xc381_7c01_6ba4_ff30));
        assert_eq!(Key::from("w").id(), KeyId(0xe5a5_5aff_4974_3dfc));
        assert_eq!(Key::from("w").id(), Key::from(String::from("w")).id());
        assert_ne!(Key::from("w").id(), Key::from("W").id());
    }
}
