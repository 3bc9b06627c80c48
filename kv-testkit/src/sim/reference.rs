//! The serial reference: what a synchronous key holds after each round, computed without any of the code under test.
//!
//! Round r of a key is made of the r-th push of every worker that ever makes one; a worker with fewer pushes has left
//! by then. The contributions are added up in rank order, then there is one update.

use super::history::History;
use super::plan::Plan;
use super::values::{KeySpec, Number};

/// The values of one key: entry r is the value after round r, entry 0 the initial one.
#[must_use]
pub fn rounds(plan: &Plan, history: &History, key: usize) -> Vec<Vec<Number>> {
    let counts: Vec<usize> = (0..plan.workers).map(|rank| history.pushed(rank, key)).collect();
    rounds_of(&plan.keys[key], &counts, plan.accumulate)
}

/// The values of a key to which rank `n` pushed `counts[n]` times.
#[must_use]
pub fn rounds_of(key: &KeySpec, counts: &[usize], accumulate: bool) -> Vec<Vec<Number>> {
    let last = counts.iter().copied().max().unwrap_or(0);
    let mut values = vec![key.initial()];
    for round in 1..=last {
        let mut sum: Option<Vec<Number>> = None;
        for (rank, _) in counts.iter().enumerate().filter(|(_, count)| **count >= round) {
            let gradient = key.gradient(rank, round - 1);
            sum = Some(match sum {
                None => gradient,
                Some(sum) => sum.iter().zip(&gradient).map(|(a, b)| a.plus(*b)).collect(),
            });
        }
        let sum = sum.unwrap_or_default();
        let before = &values[round - 1];
        let after = if accumulate { before.iter().zip(&sum).map(|(a, b)| a.plus(*b)).collect() } else { sum };
        values.push(after);
    }
    values
}

#[cfg(test)]
mod tests {
    use kv_core::{DType, Key};

    use super::*;

    #[test]
    fn rounds_are_sums_over_those_who_take_part() {
        let key = KeySpec { key: Key::from("w"), dtype: DType::I64, len: 1, wild: false };
        let g = |rank, index| key.gradient_at(rank, index, 0).whole();
        let values = rounds_of(&key, &[2, 1], true);
        let whole: Vec<i64> = values.iter().map(|value| value[0].whole()).collect();
        assert_eq!(whole, [0, g(0, 0) + g(1, 0), g(0, 0) + g(1, 0) + g(0, 1)]);
        let values = rounds_of(&key, &[2, 1], false);
        assert_eq!(values[2][0].whole(), g(0, 1));
    }
}
