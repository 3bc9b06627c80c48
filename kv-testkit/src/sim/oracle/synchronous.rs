//! Synchronous rounds equal the serial reference, bit for bit.

use kv_core::Consistency;

use super::difference;
use crate::sim::history::History;
use crate::sim::plan::Plan;
use crate::sim::reference::rounds;

/// Where nothing fails: every worker's pull equals the reference's value after exactly the rounds it had contributed
/// to. Returns how many values were compared.
///
/// # Errors
/// The first value that differs.
pub fn check(plan: &Plan, history: &History) -> Result<u64, String> {
    if plan.consistency == Consistency::Async || !plan.profile.is_exact() {
        return Ok(0);
    }
    let reference: Vec<_> = (0..plan.keys.len()).map(|key| rounds(plan, history, key)).collect();
    let mut compared = 0;
    for (number, call) in history.calls.iter().enumerate() {
        let Some((_, Ok(values))) = &call.done else { continue };
        for ((key, round), found) in call.pulls.iter().zip(values) {
            if let Some(difference) = difference(found, &reference[*key][*round]) {
                return Err(format!(
                    "call {number} of rank {} pulled key {} after {round} pushes: {difference}",
                    call.rank, plan.keys[*key].key
                ));
            }
            compared += 1;
        }
    }
    Ok(compared)
}
