//! Nobody passes a barrier before the last live worker has arrived, with all its earlier pushes acknowledged.

use kv_core::cluster::Role;

use crate::sim::history::{Call, History, What};
use crate::sim::plan::Plan;
use crate::sim::world::End;

/// Looks at every barrier that was passed.
///
/// # Errors
/// The first that was passed too early.
pub fn check(plan: &Plan, history: &History, ends: &[End]) -> Result<(), String> {
    // The n-th call is barrier n only until one fails; then a later one may stand for it.
    let reliable = |rank: usize, number: usize| {
        let earlier = history.of_rank(rank).filter(|call| matches!(call.what, What::Barrier(n) if n < number));
        earlier.into_iter().all(Call::is_ok)
    };
    for passed in history.calls.iter().filter(|call| call.is_ok()) {
        let (What::Barrier(number), Some((left, _))) = (&passed.what, &passed.done) else { continue };
        if !reliable(passed.rank, *number) {
            continue;
        }
        for other in 0..plan.workers {
            let crashed = ends.iter().any(|end| end.role == Role::Worker && end.rank == Some(other) && end.crashed);
            let never_joined = !ends.iter().any(|end| end.role == Role::Worker && end.rank == Some(other));
            // In an outage a worker may be declared lost without having done anything wrong.
            if crashed || never_joined || plan.mad == Some(other) || !reliable(other, *number) {
                continue;
            }
            let has_left = history.of_rank(other).any(|call| call.what == What::Leave && call.submitted < *left);
            let arrived = history.of_rank(other).find(|call| call.what == What::Barrier(*number));
            let failed = history.of_rank(other).any(|call| matches!(call.done, Some((_, Err(_)))));
            match arrived {
                // Declared lost with open calls.
                Some(_) if failed && lost(plan) => {}
                Some(arrived) if arrived.submitted < *left => {
                    let open = |call: &&Call| {
                        !call.pushes.is_empty()
                            && call.submitted < arrived.submitted
                            && call.done.as_ref().is_none_or(|(done, _)| done > left)
                    };
                    if let Some(push) = history.of_rank(other).find(open) {
                        return Err(format!(
                            "rank {} passed barrier {number} at {:?}, but a push that rank {other} submitted at {:?}, \
                             before it arrived, was not acknowledged",
                            passed.rank, left.at, push.submitted.at
                        ));
                    }
                }
                _ if has_left || (failed && !plan.profile.is_exact()) || !plan.profile.is_exact() && lost(plan) => {}
                _ => {
                    return Err(format!(
                        "rank {} passed barrier {number} at {:?} before rank {other} arrived",
                        passed.rank, left.at
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Whether a live worker may be taken for lost.
fn lost(plan: &Plan) -> bool {
    plan.profile == crate::sim::plan::Profile::Outage
}
