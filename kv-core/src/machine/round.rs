//! The rounds of one chunk: who has contributed what, and when a round is complete.

use std::collections::VecDeque;

use bytes::Bytes;

use super::rank_set::RankSet;
use crate::buffer::Buffer;
use crate::cluster::Rank;
use crate::dtype::DType;
use crate::sum::add_assign;

/// Rounds that are open, oldest first. Round numbers start at 1; the first open round is `applied + 1`.
///
/// A worker's contributions fill rounds from the front without gaps, so how many rounds it has contributed to is the
/// position of the first open round without it. No per-worker counter is kept, and a worker that joins later enters
/// at the current round by itself.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    open: VecDeque<Round>,
}

#[derive(Debug, Default)]
struct Round {
    from: RankSet,
    sum: Sum,
}

/// The contributions of one round.
#[derive(Debug, Default)]
pub(super) enum Sum {
    /// None yet.
    #[default]
    Empty,
    /// One, still in the message that brought it.
    Single(Bytes),
    /// Summed in order of arrival.
    Running(Buffer),
    /// Kept apart, to be summed in rank order.
    ByRank(Vec<(Rank, Bytes)>),
}

impl Rounds {
    /// Adds a contribution of `rank` to the first round it has not contributed to. Returns how many rounds lie before
    /// that one.
    pub(super) fn contribute(&mut self, rank: Rank, dtype: DType, values: Bytes, by_rank: bool) -> usize {
        let index = self.contributed(rank);
        if index == self.open.len() {
            self.open.push_back(Round::default());
        }
        let round = &mut self.open[index];
        round.from.insert(rank);
        round.sum.add(rank, dtype, values, by_rank);
        index
    }

    /// How many open rounds `rank` has contributed to.
    pub(super) fn contributed(&self, rank: Rank) -> usize {
        self.open.iter().position(|round| !round.from.contains(rank)).unwrap_or(self.open.len())
    }

    /// Takes the first open round out if everybody in `required` has contributed to it.
    pub(super) fn close(&mut self, required: &RankSet) -> Option<Sum> {
        if self.open.front()?.from.covers(required) { self.open.pop_front().map(|round| round.sum) } else { None }
    }

    /// Who of `required` is missing in the first open round.
    pub(super) fn missing(&self, required: &RankSet) -> Vec<Rank> {
        let nobody = RankSet::default();
        required.without(self.open.front().map_or(&nobody, |round| &round.from)).collect()
    }
}

impl Sum {
    fn add(&mut self, rank: Rank, dtype: DType, values: Bytes, by_rank: bool) {
        *self = match std::mem::take(self) {
            Self::Empty => Self::Single(values).keep_rank(rank, by_rank),
            Self::Single(first) => {
                let mut sum = Buffer::copy_of(&first);
                add_assign(dtype, sum.bytes_mut(), &values);
                Self::Running(sum)
            }
            Self::Running(mut sum) => {
                add_assign(dtype, sum.bytes_mut(), &values);
                Self::Running(sum)
            }
            Self::ByRank(mut parts) => {
                parts.push((rank, values));
                Self::ByRank(parts)
            }
        }
    }

    fn keep_rank(self, rank: Rank, by_rank: bool) -> Self {
        match self {
            Self::Single(values) if by_rank => Self::ByRank(vec![(rank, values)]),
            other => other,
        }
    }

    /// The sum: a whole buffer, or the one contribution there was. `None` when there was none.
    pub(super) fn finish(self, dtype: DType) -> Option<Summed> {
        match self {
            Self::Empty => None,
            Self::Single(values) => Some(Summed::Shared(values)),
            Self::Running(sum) => Some(Summed::Owned(sum)),
            Self::ByRank(mut parts) => {
                // Stable: two contributions of one rank cannot be in one round, but order must never be in doubt.
                parts.sort_by_key(|(rank, _)| *rank);
                let mut parts = parts.into_iter().map(|(_, values)| values);
                let first = parts.next()?;
                let mut rest = parts.peekable();
                if rest.peek().is_none() {
                    return Some(Summed::Shared(first));
                }
                let mut sum = Buffer::copy_of(&first);
                for values in rest {
                    add_assign(dtype, sum.bytes_mut(), &values);
                }
                Some(Summed::Owned(sum))
            }
        }
    }
}

/// A finished sum.
#[derive(Debug)]
pub(super) enum Summed {
    /// Memory of its own, that may become the value.
    Owned(Buffer),
    /// Memory of a message, to be read only.
    Shared(Bytes),
}

impl Summed {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(sum) => sum.bytes(),
            Self::Shared(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(x: f32) -> Bytes {
        Bytes::copy_from_slice(&x.to_le_bytes())
    }

    fn close(rounds: &mut Rounds, required: &RankSet) -> Option<f32> {
        let sum = rounds.close(required)?.finish(DType::F32)?;
        Some(bytemuck::pod_read_unaligned(sum.bytes()))
    }

    fn ranks(ranks: &[u16]) -> RankSet {
        let mut set = RankSet::default();
        ranks.iter().for_each(|&rank| set.insert(Rank(rank)));
        set
    }

    #[test]
    fn two_pushes_without_a_pull_belong_to_two_rounds() {
        // The case MXNet gets wrong: it counts requests, so workers 0 (1 then 10) and 1 (2 then 20) pull 11 and 22.
        let both = ranks(&[0, 1]);
        let mut rounds = Rounds::default();
        for (rank, x) in [(0, 1.0), (0, 10.0)] {
            rounds.contribute(Rank(rank), DType::F32, values(x), false);
            assert_eq!(close(&mut rounds, &both), None);
        }
        rounds.contribute(Rank(1), DType::F32, values(2.0), false);
        assert_eq!(close(&mut rounds, &both), Some(3.0));
        assert_eq!(close(&mut rounds, &both), None);
        assert_eq!(rounds.missing(&both), [Rank(1)]);
        rounds.contribute(Rank(1), DType::F32, values(20.0), false);
        assert_eq!(close(&mut rounds, &both), Some(30.0));
        assert_eq!(rounds.contributed(Rank(0)), 0);
    }

    #[test]
    fn a_worker_that_leaves_is_not_waited_for_and_what_it_gave_counts() {
        let mut rounds = Rounds::default();
        rounds.contribute(Rank(1), DType::F32, values(5.0), false);
        rounds.contribute(Rank(0), DType::F32, values(1.0), false);
        assert_eq!(close(&mut rounds, &ranks(&[0, 1, 2])), None);
        assert_eq!(close(&mut rounds, &ranks(&[0, 1])), Some(6.0));
    }

    #[test]
    fn rank_order_is_independent_of_arrival() {
        // In f32 (1e8 + 1) - 1e8 is 0 but (1e8 - 1e8) + 1 is 1: order shows.
        let parts = [(0, 1e8_f32), (1, 1.0), (2, -1e8)];
        let mut results = Vec::new();
        for order in [[0, 1, 2], [2, 0, 1], [2, 1, 0]] {
            let mut rounds = Rounds::default();
            for i in order {
                let (rank, x) = parts[i];
                rounds.contribute(Rank(rank), DType::F32, values(x), true);
            }
            results.push(close(&mut rounds, &ranks(&[0, 1, 2])).unwrap());
        }
        assert_eq!(results, [0.0, 0.0, 0.0]);
    }
}
