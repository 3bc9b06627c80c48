//! Whatever happens: in synchronous rounds, two workers that read a key after the same number of pushes read the same.

use std::collections::BTreeMap;

use kv_core::Consistency;

use super::difference;
use crate::sim::history::History;
use crate::sim::plan::Plan;
use crate::sim::values::Number;

/// Compares all pulls of each key after each number of pushes.
///
/// # Errors
/// The first pair that differs.
pub fn check(plan: &Plan, history: &History) -> Result<(), String> {
    if plan.consistency == Consistency::Async {
        return Ok(());
    }
    let mut seen: BTreeMap<(usize, usize), (usize, &Vec<Number>)> = BTreeMap::new();
    for rank in 0..plan.workers {
        // A push that failed may or may not have been counted: from then on, this worker's rounds are not known.
        let mut unsure = vec![false; plan.keys.len()];
        for call in history.of_rank(rank) {
            for (key, _) in &call.pushes {
                unsure[*key] |= !call.is_ok();
            }
            let Some((_, Ok(values))) = &call.done else { continue };
            for ((key, round), found) in call.pulls.iter().zip(values) {
                if unsure[*key] {
                    continue;
                }
                let (other, expected) = *seen.entry((*key, *round)).or_insert((rank, found));
                if let Some(difference) = difference(found, expected) {
                    let key = &plan.keys[*key].key;
                    return Err(format!(
                        "ranks {other} and {rank} pulled key {key} after {round} pushes: {difference}"
                    ));
                }
            }
        }
    }
    Ok(())
}
