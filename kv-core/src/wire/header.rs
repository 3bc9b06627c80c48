//! The fixed header.

/// Bytes of an encoded header: one cache line.
pub const HEADER_BYTES: usize = 64;

/// Most parts of a message.
pub const PARTS: usize = 4;

/// Version of the wire format. Two versions never talk: the handshake refuses, naming both.
pub const WIRE_VERSION: u8 = 1;

const MAGIC: [u8; 2] = *b"KV";

#[cfg(target_endian = "big")]
compile_error!("values travel as the little-endian memory they are; big-endian hosts are not supported");

/// What a message is. Part 0 of a data request is its entries, of a control message its postcard bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Between a node and the scheduler: see [`super::Control`].
    Control = 1,
    /// Worker to server: create entries (part 1: metadata, part 3: initial values).
    Init = 2,
    /// Worker to server: contribute (part 3: gradients).
    Push = 3,
    /// Worker to server: read.
    Pull = 4,
    /// Worker to server: contribute, and read what results (part 3: gradients).
    PushPull = 5,
    /// Worker to server: tell me the metadata of these keys (part 1: the keys, and whether to wait for them).
    Describe = 6,
    /// Worker to server: use this updater (part 1: its spec).
    SetUpdater = 7,
    /// Worker to server: I am done; count me out.
    Leave = 8,
    /// Server to worker: the answer to the request with the same sequence.
    Reply = 9,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Control,
        Self::Init,
        Self::Push,
        Self::Pull,
        Self::PushPull,
        Self::Describe,
        Self::SetUpdater,
        Self::Leave,
        Self::Reply,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Number of parts, 0 to 4.
    pub part_count: u8,
    /// 0 for a request and for a good reply; else part 0 of the reply is a [`crate::error::Rejection`].
    pub status: u16,
    /// Number of the request at this server, from 1, without gaps; a reply echoes it. 0 in control messages.
    pub sequence: u64,
    /// How far the oldest request without an answer lies behind this one. The server forgets what it remembers of
    /// older ones.
    pub behind: u32,
    /// Version of the roster the sender knows. Reserved: 0 today, not looked at.
    pub epoch: u32,
    /// Clock of the sender. Reserved for bounded staleness: 0 today, not looked at.
    pub clock: u32,
    /// How long the server may make the request wait, in milliseconds. 0 means the default.
    pub deadline_ms: u32,
    /// Lengths of the parts in bytes; those beyond `part_count` are 0.
    pub part_len: [u64; PARTS],
}

impl Header {
    /// A header of this kind with everything else zero.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            part_count: 0,
            status: 0,
            sequence: 0,
            behind: 0,
            epoch: 0,
            clock: 0,
            deadline_ms: 0,
            part_len: [0; PARTS],
        }
    }

    /// The 64 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC);
        bytes[2] = WIRE_VERSION;
        bytes[3] = self.kind as u8;
        bytes[5] = self.part_count;
        bytes[6..8].copy_from_slice(&self.status.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.behind.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.clock.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.deadline_ms.to_le_bytes());
        for (field, len) in bytes[32..].chunks_exact_mut(8).zip(self.part_len) {
            field.copy_from_slice(&len.to_le_bytes());
        }
        bytes
    }

    /// Reads 64 bytes; `part_bytes_max` bounds each announced part.
    ///
    /// # Errors
    /// [`DecodeError`] for anything this version would not have written.
    pub fn decode(bytes: &[u8; HEADER_BYTES], part_bytes_max: u64) -> Result<Self, DecodeError> {
        if bytes[0..2] != MAGIC {
            return Err(DecodeError::Magic([bytes[0], bytes[1]]));
        }
        if bytes[2] != WIRE_VERSION {
            return Err(DecodeError::Version { expected: WIRE_VERSION, found: bytes[2] });
        }
        let kind = Kind::from_code(bytes[3]).ok_or(DecodeError::Kind(bytes[3]))?;
        if bytes[4] != 0 {
            return Err(DecodeError::Flags(bytes[4]));
        }
        let part_count = bytes[5];
        if usize::from(part_count) > PARTS {
            return Err(DecodeError::PartCount(part_count));
        }
        let mut part_len = [0; PARTS];
        for (part, (len, field)) in part_len.iter_mut().zip(bytes[32..].chunks_exact(8)).enumerate() {
            *len = u64::from_le_bytes(array(field));
            let len_max = if part < usize::from(part_count) { part_bytes_max } else { 0 };
            if *len > len_max {
                return Err(DecodeError::PartLen { part, bytes: *len, bytes_max: len_max });
            }
        }
        Ok(Self {
            kind,
            part_count,
            status: u16::from_le_bytes(array(&bytes[6..8])),
            sequence: u64::from_le_bytes(array(&bytes[8..16])),
            behind: u32::from_le_bytes(array(&bytes[16..20])),
            epoch: u32::from_le_bytes(array(&bytes[20..24])),
            clock: u32::from_le_bytes(array(&bytes[24..28])),
            deadline_ms: u32::from_le_bytes(array(&bytes[28..32])),
            part_len,
        })
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

/// Why bytes are not a message of this format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Not our protocol at all.
    #[error("not a kv message: it starts with {0:02x?}")]
    Magic([u8; 2]),
    /// Another version of it.
    #[error("wire format version {found}, this program speaks {expected}")]
    Version {
        /// Ours.
        expected: u8,
        /// Theirs.
        found: u8,
    },
    /// A kind this version does not know.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// Flags this version does not know.
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    /// More parts than there are.
    #[error("{0} parts, at most {PARTS}")]
    PartCount(u8),
    /// A part longer than allowed.
    #[error("part {part} announces {bytes} bytes, at most {bytes_max} are allowed")]
    PartLen {
        /// Which part.
        part: usize,
        /// Announced.
        bytes: u64,
        /// Allowed.
        bytes_max: u64,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn layout_is_what_the_documentation_says() {
        let header = Header {
            kind: Kind::Push,
            part_count: 4,
            status: 0x0201,
            sequence: 0x0807_0605_0403_0201,
            behind: 7,
            epoch: 8,
            clock: 9,
            deadline_ms: 10,
            part_len: [1, 2, 3, 0x0102_0304],
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..8], [b'K', b'V', 1, 3, 0, 4, 1, 2]);
        assert_eq!(&bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!([bytes[16], bytes[20], bytes[24], bytes[28]], [7, 8, 9, 10]);
        assert_eq!(&bytes[56..], [4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(Header::decode(&bytes, u64::MAX), Ok(header));
    }

    #[test]
    fn announced_lengths_are_checked() {
        let mut bytes = Header { part_count: 1, ..Header::new(Kind::Pull) }.encode();
        bytes[39] = 0x80; // 2^63
        assert!(matches!(Header::decode(&bytes, 1 << 30), Err(DecodeError::PartLen { part: 0, .. })));
        bytes[5] = 0;
        assert!(matches!(Header::decode(&bytes, u64::MAX), Err(DecodeError::PartLen { bytes_max: 0, .. })));
    }

    proptest! {
        #[test]
        fn decoding_is_total_and_exact(mut bytes in proptest::array::uniform32(any::<u8>()), ours in any::<bool>()) {
            let mut header = [0; HEADER_BYTES];
            if ours {
                bytes[0..3].copy_from_slice(&[b'K', b'V', WIRE_VERSION]);
                bytes[3] = bytes[3] % 9 + 1;
                bytes[4] = 0;
                bytes[5] %= 5;
            }
            header[..32].copy_from_slice(&bytes);
            if let Ok(decoded) = Header::decode(&header, 1 << 40) {
                prop_assert_eq!(decoded.encode(), header);
            }
        }
    }
}
