//! Memory that is used again instead of being given back to the operating system: finding fresh pages costs more than
//! filling them.

use std::sync::{Mutex, PoisonError};

/// Below this many words (16 KiB) an allocator is as good.
const WORDS_MIN: usize = 2 * 1024;

/// Kept at most, in words: 32 MiB for the whole process.
const WORDS_KEPT_MAX: usize = 4 * 1024 * 1024;

/// Pieces kept at most: they are searched one after the other.
const PIECES_KEPT_MAX: usize = 256;

static KEPT: Mutex<Kept> = Mutex::new(Kept { pieces: Vec::new(), words: 0 });

/// Pieces of memory that nobody uses, the one freed last at the end: that is the one most likely still in the cache.
struct Kept {
    pieces: Vec<Vec<u64>>,
    words: usize,
}

impl Kept {
    fn take(&mut self, words: usize) -> Option<Vec<u64>> {
        // At most an eighth more: what is taken may be kept for long, as a value.
        let fits = |piece: &Vec<u64>| words <= piece.len() && piece.len() - words <= words / 8;
        let at = self.pieces.iter().rposition(fits)?;
        let piece = self.pieces.remove(at);
        self.words -= piece.len();
        Some(piece)
    }

    fn give(&mut self, piece: Vec<u64>) {
        self.words += piece.len();
        self.pieces.push(piece);
        let mut dropped = 0;
        while self.words > WORDS_KEPT_MAX || self.pieces.len() - dropped > PIECES_KEPT_MAX {
            self.words -= self.pieces[dropped].len();
            dropped += 1;
        }
        self.pieces.drain(..dropped);
    }
}

/// At least `words` words with any content.
pub(super) fn take(words: usize) -> Vec<u64> {
    let kept = if words < WORDS_MIN { None } else { kept(|kept| kept.take(words)) };
    kept.unwrap_or_else(|| vec![0; words])
}

/// Takes memory that nobody uses any more.
pub(super) fn give(piece: Vec<u64>) {
    if (WORDS_MIN..=WORDS_KEPT_MAX).contains(&piece.len()) {
        kept(|kept| kept.give(piece));
    }
}

fn kept<T>(run: impl FnOnce(&mut Kept) -> T) -> T {
    // Freeing what is dropped happens under the lock, too; it is rare once memory goes round.
    run(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_round_within_its_bounds() {
        let mut kept = Kept { pieces: Vec::new(), words: 0 };
        kept.give(vec![7; 10_000]);
        assert!(kept.take(10_001).is_none(), "too small");
        assert!(kept.take(8_800).is_none(), "a waste");
        let piece = kept.take(9_000).unwrap();
        assert_eq!((piece.len(), kept.words), (10_000, 0));
        for _ in 0..1000 {
            kept.give(vec![0; 100_000]);
            kept.give(vec![0; 2_048]);
            assert!(kept.words <= WORDS_KEPT_MAX && kept.pieces.len() <= PIECES_KEPT_MAX);
            assert_eq!(kept.words, kept.pieces.iter().map(Vec::len).sum::<usize>());
        }
    }
}
