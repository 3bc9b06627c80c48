//! A set of worker ranks.

use crate::cluster::Rank;

/// Ranks 0 to 63 need no memory of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RankSet {
    low: u64,
    high: Vec<u64>,
}

impl RankSet {
    pub(super) fn insert(&mut self, rank: Rank) {
        let (word, bit) = Self::place(rank);
        match word.checked_sub(1) {
            None => self.low |= bit,
            Some(word) => {
                if self.high.len() <= word {
                    self.high.resize(word + 1, 0);
                }
                self.high[word] |= bit;
            }
        }
    }

    pub(super) fn remove(&mut self, rank: Rank) {
        let (word, bit) = Self::place(rank);
        match word.checked_sub(1) {
            None => self.low &= !bit,
            Some(word) => {
                if let Some(word) = self.high.get_mut(word) {
                    *word &= !bit;
                }
            }
        }
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        let (word, bit) = Self::place(rank);
        self.word(word) & bit != 0
    }

    /// Whether every member of `other` is a member too.
    pub(super) fn covers(&self, other: &Self) -> bool {
        other.low & !self.low == 0
            && other.high.iter().enumerate().all(|(word, &bits)| bits & !self.word(word + 1) == 0)
    }

    /// Members that `other` lacks, in ascending order.
    pub(super) fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Rank> + 'a {
        (0..=self.high.len()).flat_map(move |word| {
            let bits = self.word(word) & !other.word(word);
            (0..64_usize).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| Rank((word * 64 + bit) as u16))
        })
    }

    fn word(&self, word: usize) -> u64 {
        match word.checked_sub(1) {
            None => self.low,
            Some(word) => self.high.get(word).copied().unwrap_or(0),
        }
    }

    fn place(rank: Rank) -> (usize, u64) {
        (usize::from(rank.0) / 64, 1 << (rank.0 % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_below_and_above_64() {
        let mut set = RankSet::default();
        let mut other = RankSet::default();
        for rank in [0, 63, 64, 200] {
            set.insert(Rank(rank));
        }
        assert!(set.contains(Rank(200)) && !set.contains(Rank(199)) && !set.contains(Rank(u16::MAX)));
        other.insert(Rank(64));
        assert!(set.covers(&other) && !other.covers(&set));
        assert_eq!(set.without(&other).map(|r| r.0).collect::<Vec<_>>(), [0, 63, 200]);
        set.remove(Rank(200));
        set.remove(Rank(500));
        assert!(!set.contains(Rank(200)));
    }
}
