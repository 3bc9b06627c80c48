//! Which worker computes which examples in which step: a pure function of seed, epoch and sizes, so that every worker
//! makes the same number of steps and no two compute the same example.

use std::ops::Range;

/// The order of examples in one epoch.
pub(super) fn order(examples: usize, seed: u64, epoch: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..examples).collect();
    // Mixed, so that neighbouring epochs and seeds do not give related orders.
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(epoch) << 1 | 1);
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

/// The steps of an epoch, each the range of the order that all workers compute together.
pub(super) fn steps(examples: usize, workers: usize, batch: usize) -> impl Iterator<Item = Range<usize>> {
    let together = workers * batch;
    (0..examples.div_ceil(together)).map(move |step| step * together..((step + 1) * together).min(examples))
}

/// Worker `rank`'s share of a step. Shares differ by at most one example; in the last step some may be empty, and
/// those workers push zeros.
pub(super) fn share(step: &Range<usize>, workers: usize, rank: usize) -> Range<usize> {
    let (each, more) = (step.len() / workers, step.len() % workers);
    let start = step.start + rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_computed_once_per_epoch() {
        for examples in [1, 5, 32, 100] {
            for workers in [1, 2, 3, 8] {
                let mut seen = vec![0; examples];
                let order = order(examples, 3, 1);
                for step in steps(examples, workers, 4) {
                    for rank in 0..workers {
                        order[share(&step, workers, rank)].iter().for_each(|&example| seen[example] += 1);
                    }
                }
                assert_eq!(seen, vec![1; examples]);
            }
        }
    }

    #[test]
    fn orders_differ_between_epochs_and_seeds() {
        assert_eq!(order(50, 1, 1), order(50, 1, 1));
        assert_ne!(order(50, 1, 1), order(50, 1, 2));
        assert_ne!(order(50, 1, 1), order(50, 2, 1));
    }
}
