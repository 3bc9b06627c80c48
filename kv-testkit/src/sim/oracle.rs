//! The oracles: each looks at a finished run and says what is wrong with it.

pub mod barriers;
pub mod completion;
pub mod ends;
#[cfg(test)]
mod fabricated;
pub mod replicas;
pub mod roster;
pub mod sums;
pub mod synchronous;

use super::plan::{Plan, Profile};
use super::values::Number;
use super::world::{EVENTS_MAX, Run};

/// All oracles on one run.
///
/// # Errors
/// What is wrong, in words.
pub fn judge(plan: &Plan, run: &mut Run) -> Result<(), String> {
    if run.stats.events > EVENTS_MAX {
        return Err("the run is a busy loop: millions of events".to_owned());
    }
    completion::check(plan, run)?;
    if plan.profile == Profile::Hostile {
        return Ok(());
    }
    roster::check(plan, &run.rosters)?;
    barriers::check(plan, &run.history, &run.ends)?;
    run.stats.exact += synchronous::check(plan, &run.history)?;
    run.stats.exact += sums::check(plan, &run.history)?;
    replicas::check(plan, &run.history)?;
    ends::check(plan, run)
}

/// The first difference of two values, in words.
fn difference(found: &[Number], expected: &[Number]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} elements, expected {}", found.len(), expected.len()));
    }
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
    Some(format!("element {at} is {:?}, expected {:?}", found[at], expected[at]))
}
