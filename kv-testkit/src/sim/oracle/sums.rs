//! Exactly once: what is read lies between what must have been applied and what can have been.
//!
//! All gradients are positive whole numbers, so this holds for every element. At the end of a run without crashes both
//! bounds are the same.

use kv_core::Consistency;

use crate::sim::history::{Call, History, Moment, What};
use crate::sim::plan::Plan;

/// Looks at every value read. Returns how many were known exactly.
///
/// # Errors
/// The first value out of bounds.
pub fn check(plan: &Plan, history: &History) -> Result<u64, String> {
    if plan.accumulate && !is_accumulating(history) {
        return Ok(0);
    }
    let mut exact = 0;
    let fences = fences(plan, history);
    for (number, call) in history.calls.iter().enumerate() {
        let Some((done, Ok(values))) = &call.done else { continue };
        for ((key, round), found) in call.pulls.iter().zip(values) {
            let spec = &plan.keys[*key];
            if spec.wild {
                continue;
            }
            let name = || format!("call {number} of rank {} pulled key {} after {round} pushes", call.rank, spec.key);
            let whole: Vec<i64> = found.iter().map(|number| number.whole()).collect();
            if whole.len() != spec.len {
                return Err(format!("{}: {} elements, expected {}", name(), whole.len(), spec.len));
            }
            let must = pushes(history, *key, |other, index| must_be_in(plan, call, &fences, other, index, *round));
            let may = pushes(history, *key, |other, index| may_be_in(plan, call, *done, other, index, *round));
            let last_own = must.iter().filter(|(rank, _)| *rank == call.rank).map(|(_, index)| *index).max();
            for (element, value) in whole.into_iter().enumerate() {
                let add = |(rank, index): &(usize, usize)| spec.gradient_at(*rank, *index, element).whole();
                let initial = (element % 17) as i64;
                if plan.accumulate {
                    let low = initial + must.iter().map(add).sum::<i64>();
                    let high = initial + may.iter().map(add).sum::<i64>();
                    if value < low || value > high {
                        return Err(format!("{}: element {element} is {value}, not in {low}..={high}", name()));
                    }
                } else if plan.consistency == Consistency::Async {
                    // Its own last push, or somebody else's any: never an older one of its own.
                    let own = may.iter().filter(|(rank, index)| *rank != call.rank || Some(*index) >= last_own);
                    let unchanged = last_own.is_none() && value == initial;
                    if !unchanged && !own.into_iter().any(|push| add(push) == value) {
                        return Err(format!("{}: element {element} is {value}, which nobody pushed", name()));
                    }
                }
            }
            exact += u64::from(plan.accumulate && must.len() == may.len() && spec.len > 0);
        }
    }
    Ok(exact)
}

/// Whether every server was told to accumulate before the first push: whoever should have done so may have died, and a
/// script goes on behind a barrier that failed.
fn is_accumulating(history: &History) -> bool {
    let mut told = history.calls.iter().filter(|call| call.what == What::SetUpdater).peekable();
    let mut fence = history.calls.iter().filter(|call| call.what == What::Barrier(1));
    told.peek().is_some() && told.all(Call::is_ok) && fence.all(Call::is_ok)
}

/// The pushes of a key that `holds`, as rank and index.
fn pushes(history: &History, key: usize, holds: impl Fn(&Call, usize) -> bool) -> Vec<(usize, usize)> {
    let all = history.calls.iter().flat_map(|call| call.pushes.iter().map(move |push| (call, push)));
    all.filter(|(call, (pushed, index))| *pushed == key && holds(call, *index))
        .map(|(call, (_, index))| (call.rank, *index))
        .collect()
}

/// Whether a push must be in what `pull` read after `round` own pushes.
fn must_be_in(plan: &Plan, pull: &Call, fences: &[Vec<Fence>], push: &Call, index: usize, round: usize) -> bool {
    if push.rank == pull.rank {
        // Its own: the server runs a worker's requests in order, so it is enough that the push was accepted.
        return index < round && (push.is_ok() || std::ptr::eq(push, pull));
    }
    // Others' acknowledged pushes: only asynchronous keys show them at once.
    plan.consistency == Consistency::Async
        && (push.is_ok_before(pull.submitted) || push.is_ok() && is_behind_barrier(pull, fences, push))
}

/// Whether a push can be in what `pull`, complete at `done`, read after `round` own pushes.
fn may_be_in(plan: &Plan, pull: &Call, done: Moment, push: &Call, index: usize, round: usize) -> bool {
    let submitted = push.submitted < done;
    // A round holds one push of each worker. Rounds are not known any more where pushes can fail.
    let in_rounds = plan.consistency == Consistency::Async || !plan.profile.is_exact() || index < round;
    let own_later = push.rank == pull.rank && index >= round;
    submitted && in_rounds && !own_later
}

/// A barrier passed: its number, when it was entered and when left.
struct Fence {
    number: usize,
    entered: Moment,
    left: Moment,
}

/// The barriers that each rank passed, as long as none failed.
fn fences(plan: &Plan, history: &History) -> Vec<Vec<Fence>> {
    let fence = |call: &Call| match (&call.what, &call.done) {
        (What::Barrier(number), Some((left, Ok(_)))) => {
            Some(Some(Fence { number: *number, entered: call.submitted, left: *left }))
        }
        (What::Barrier(_), _) => Some(None),
        _ => None,
    };
    (0..plan.workers).map(|rank| history.of_rank(rank).filter_map(fence).map_while(|fence| fence).collect()).collect()
}

/// Whether a barrier lies between them: entered by the pusher after the push, left by the puller before the pull.
fn is_behind_barrier(pull: &Call, fences: &[Vec<Fence>], push: &Call) -> bool {
    let Some(passed) = fences[pull.rank].iter().rev().find(|fence| fence.left < pull.submitted) else { return false };
    fences[push.rank].iter().any(|fence| fence.number <= passed.number && push.submitted < fence.entered)
}
