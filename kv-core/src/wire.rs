//! Bytes on the wire: a 64-byte header and up to four shared buffers.
//!
//! ```text
//!  0  u16  magic "KV"                       16  u32  sequence - oldest unanswered sequence
//!  2  u8   version of the format            20  u32  epoch of the roster the sender knows (reserved)
//!  3  u8   kind                             24  u32  clock of the sender (reserved for bounded staleness)
//!  4  u8   flags, must be zero              28  u32  deadline of the request in milliseconds, 0 = default
//!  5  u8   number of parts (0..=4)          32  u64  length of part 0: entries or control bytes
//!  6  u16  status of a reply, 0 = ok        40  u64  length of part 1: metadata of keys
//!  8  u64  sequence of the request          48  u64  length of part 2: row ids
//!                                           56  u64  length of part 3: values
//! ```
//!
//! All numbers are little-endian. Decoding is total: every byte pattern gives a header or a [`DecodeError`], and
//! nothing is reserved for a length before that length was checked.

mod control;
mod data;
mod entry;
mod header;
mod message;

pub use control::{Control, JoinRequest, NodeStats, NodeStatus, StatusReport, Waiting};
pub use data::{DataError, KeyMeta, UpdaterSpec, decode_part, encode_part};
pub use entry::{ENTRY_BYTES, Entry, entries_of, entries_part};
pub use header::{DecodeError, HEADER_BYTES, Header, Kind, PARTS, WIRE_VERSION};
pub use message::Message;
