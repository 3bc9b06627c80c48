//! The unit of transfer.

use bytes::Bytes;

use super::header::{Header, Kind, PARTS};

/// A header and up to four parts. A clone shares the parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    header: Header,
    parts: [Bytes; PARTS],
}

impl Message {
    /// A message without parts.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self { header: Header::new(kind), parts: Default::default() }
    }

    /// Sets part `index` (0 to 3); the parts before it exist too, empty if not set.
    ///
    /// # Panics
    /// When `index` is not below 4: the caller writes it as a constant.
    #[must_use]
    pub fn with_part(mut self, index: usize, bytes: Bytes) -> Self {
        self.header.part_len[index] = bytes.len() as u64;
        self.header.part_count = self.header.part_count.max(index as u8 + 1);
        self.parts[index] = bytes;
        self
    }

    /// Changes the header's fields other than the parts' count and lengths.
    #[must_use]
    pub fn with_header(mut self, change: impl FnOnce(&mut Header)) -> Self {
        let (part_count, part_len) = (self.header.part_count, self.header.part_len);
        change(&mut self.header);
        (self.header.part_count, self.header.part_len) = (part_count, part_len);
        self
    }

    /// Puts a received header and its parts together. Vans call it when every part has arrived.
    ///
    /// # Panics
    /// When the parts do not have the announced lengths: the van read them by those.
    #[must_use]
    pub fn from_parts(header: Header, parts: [Bytes; PARTS]) -> Self {
        for (part, len) in parts.iter().zip(header.part_len) {
            assert_eq!(part.len() as u64, len, "a van reads each part by its announced length");
        }
        Self { header, parts }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What the message is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.header.kind
    }

    /// The parts there are.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        &self.parts[..usize::from(self.header.part_count)]
    }

    /// Part `index`, empty when there is none.
    ///
    /// # Panics
    /// When `index` is not below 4.
    #[must_use]
    pub fn part(&self, index: usize) -> &Bytes {
        &self.parts[index]
    }

    /// Bytes of all parts together.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}
