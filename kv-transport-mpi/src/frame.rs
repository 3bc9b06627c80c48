//! How a message becomes MPI messages.
//!
//! ```text
//!   tag FRAME   header (64 bytes) | parts that fit into the frame, one after the other
//!   tag PART    every other part, in pieces of at most 1 GiB
//! ```
//!
//! Which parts stand in the frame follows from the lengths in the header alone. MPI keeps the order of messages with
//! one tag from one rank, so the receiver knows which piece is which.

use kv_core::Buffer;
use kv_core::wire::{HEADER_BYTES, Header, Message, PARTS};

/// Bytes of parts in a frame. With the header and what MPI adds it stays below 4 KiB, which both libraries send without
/// asking the receiver first.
const INLINE_BYTES_MAX: u64 = 3 * 1024;

/// Largest frame.
pub(crate) const FRAME_BYTES_MAX: usize = HEADER_BYTES + INLINE_BYTES_MAX as usize;

/// Parts in a frame start at multiples of this, so that they stay aligned.
const ALIGN: u64 = 8;

/// Where each part stands in the frame, as an offset behind the header; `None` for those that are carried apart (or
/// are empty).
pub(crate) fn places(part_len: [u64; PARTS]) -> [Option<u64>; PARTS] {
    let mut used = 0;
    part_len.map(|len| {
        if len == 0 || len > INLINE_BYTES_MAX - used {
            return None;
        }
        let place = used;
        used = (used + len).next_multiple_of(ALIGN).min(INLINE_BYTES_MAX);
        Some(place)
    })
}

/// The frame of a message.
pub(crate) fn encode(message: &Message) -> Vec<u8> {
    let header = message.header();
    let mut frame = header.encode().to_vec();
    for (part, place) in message.parts().iter().zip(places(header.part_len)) {
        if let Some(place) = place {
            frame.resize(HEADER_BYTES + place as usize, 0);
            frame.extend_from_slice(part);
        }
    }
    frame
}

/// Takes a frame apart: the header, and the parts that stand in it, sharing one aligned memory.
pub(crate) fn decode(frame: &[u8], part_bytes_max: u64) -> Result<(Header, [Option<bytes::Bytes>; PARTS]), String> {
    let (head, body) =
        frame.split_first_chunk::<HEADER_BYTES>().ok_or_else(|| format!("a frame of {} bytes", frame.len()))?;
    let header = Header::decode(head, part_bytes_max).map_err(|error| error.to_string())?;
    let places = places(header.part_len);
    let ends = places.iter().zip(header.part_len).filter_map(|(place, len)| Some((*place)? + len));
    let expected = ends.max().unwrap_or(0);
    if body.len() as u64 != expected {
        return Err(format!("a frame with {} bytes of parts where {expected} are announced", body.len()));
    }
    let body = Buffer::copy_of(body).share();
    let mut parts = [const { None }; PARTS];
    for ((part, place), len) in parts.iter_mut().zip(places).zip(header.part_len) {
        if let Some(place) = place {
            *part = Some(body.slice(place as usize..(place + len) as usize));
        }
    }
    Ok((header, parts))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kv_core::wire::Kind;

    use super::*;

    fn message(lens: &[usize]) -> Message {
        let parts = lens.iter().enumerate();
        parts.fold(Message::new(Kind::Push), |message, (index, len)| {
            message.with_part(index, Bytes::from(vec![index as u8 + 1; *len]))
        })
    }

    #[test]
    fn what_fits_comes_back_aligned_and_the_rest_is_left_out() {
        for lens in [&[][..], &[0], &[1, 2, 3, 4], &[24, 0, 0, 4096], &[3071, 1, 1], &[3072, 1], &[3073, 5, 0, 3064]] {
            let message = message(lens);
            let frame = encode(&message);
            assert!(frame.len() <= FRAME_BYTES_MAX);
            let (header, parts) = decode(&frame, u64::MAX).unwrap();
            assert_eq!(header, *message.header());
            for ((part, place), sent) in parts.iter().zip(places(header.part_len)).zip(message.parts()) {
                assert_eq!(part.is_some(), place.is_some());
                if let Some(part) = part {
                    assert_eq!(part, sent);
                    assert_eq!(part.as_ptr().align_offset(8), 0);
                }
            }
        }
        assert_eq!(places([24, 0, 0, 4096]), [Some(0), None, None, None]);
        assert_eq!(places([3073, 5, 0, 3064]), [None, Some(0), None, Some(8)]);
    }

    #[test]
    fn a_frame_of_another_length_is_refused() {
        let frame = encode(&message(&[10, 20]));
        for len in 0..frame.len() {
            assert!(decode(&frame[..len], u64::MAX).is_err(), "{len} bytes");
        }
        let longer = [&frame[..], &[0]].concat();
        assert!(decode(&longer, u64::MAX).is_err());
    }
}
