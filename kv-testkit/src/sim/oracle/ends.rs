//! The job ends: everybody stops, and well if nothing was wrong.

use kv_core::cluster::Role;

use crate::sim::plan::Plan;
use crate::sim::world::Run;

/// Looks at how every node ended.
///
/// # Errors
/// The first that did not end, or ended badly for no reason.
pub fn check(plan: &Plan, run: &Run) -> Result<(), String> {
    for (node, end) in run.ends.iter().enumerate() {
        let name = || format!("node {node}, {} {:?},", end.role, end.rank);
        match &end.stopped {
            None if !end.crashed => {
                return Err(format!("{} never stopped; the run ended at {:?}", name(), run.ended_at));
            }
            Some(Err(error)) if plan.profile.is_exact() => {
                // The last words of the scheduler may be lost; then it is missed.
                let missed = end.role == Role::Server && plan.weather.drop > 0.0;
                if !missed {
                    return Err(format!("{} failed for no reason: {error}", name()));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
