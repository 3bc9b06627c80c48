//! The scheduler's barriers: numbered, idempotent, never hanging.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cluster::{NodeId, Rank};
use crate::error::Rejection;
use crate::wire::Control;

/// The workers' barrier. One number is open at a time; it is released when every worker counted in has arrived.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    released: u64,
    arrived: BTreeMap<NodeId, Arrived>,
    /// The last try of each worker that reached its deadline, and what was said.
    failed: BTreeMap<NodeId, (u64, Rejection)>,
    broken: Option<Rejection>,
}

/// What a worker says when it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) attempt: u64,
    pub(super) timeout: Duration,
}

#[derive(Debug)]
struct Arrived {
    attempt: u64,
    since: Instant,
    deadline: Instant,
}

impl Barrier {
    /// A worker has arrived (or says so again). `workers` are those counted in.
    pub(super) fn enter(
        &mut self,
        now: Instant,
        node: NodeId,
        Entry { number, attempt, timeout }: Entry,
        workers: &[(NodeId, Rank)],
    ) -> Vec<(NodeId, Control)> {
        if number <= self.released {
            return vec![(node, Control::BarrierRelease { number })];
        }
        if let Some(rejection) = &self.broken {
            return vec![(node, Control::BarrierFailed { number, attempt, rejection: rejection.clone() })];
        }
        if number != self.released + 1 {
            let text = format!("barrier {number} entered before barrier {} was released", self.released + 1);
            return vec![(node, Control::BarrierFailed { number, attempt, rejection: Rejection::Malformed(text) })];
        }
        if let Some((last, rejection)) = self.failed.get(&node)
            && attempt <= *last
        {
            // A repeated question that the answer has crossed: it must not count as a new arrival.
            return vec![(node, Control::BarrierFailed { number, attempt, rejection: rejection.clone() })];
        }
        if self.arrived.get(&node).is_none_or(|arrived| arrived.attempt < attempt) {
            let deadline = now + timeout.min(crate::limits::TIMEOUT_MAX);
            self.arrived.insert(node, Arrived { attempt, since: now, deadline });
        }
        self.release(workers)
    }

    /// The set of workers counted in has shrunk.
    pub(super) fn release(&mut self, workers: &[(NodeId, Rank)]) -> Vec<(NodeId, Control)> {
        if self.arrived.is_empty() || !workers.iter().all(|(node, _)| self.arrived.contains_key(node)) {
            return Vec::new();
        }
        self.released += 1;
        self.failed.clear();
        let release = Control::BarrierRelease { number: self.released };
        std::mem::take(&mut self.arrived).into_keys().map(|node| (node, release.clone())).collect()
    }

    /// A worker that is needed will never arrive: this barrier and all later ones fail.
    pub(super) fn break_for_ever(&mut self, rejection: Rejection) -> Vec<(NodeId, Control)> {
        let number = self.released + 1;
        self.broken.get_or_insert(rejection.clone());
        let failed = |Arrived { attempt, .. }| Control::BarrierFailed { number, attempt, rejection: rejection.clone() };
        std::mem::take(&mut self.arrived).into_iter().map(|(node, arrived)| (node, failed(arrived))).collect()
    }

    /// A worker is gone; it is not waiting any more.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.arrived.remove(&node);
        self.failed.remove(&node);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, workers: &[(NodeId, Rank)]) -> Vec<(NodeId, Control)> {
        let mut missing: Vec<Rank> =
            workers.iter().filter(|(node, _)| !self.arrived.contains_key(node)).map(|(_, rank)| *rank).collect();
        // Workers are listed as they joined.
        missing.sort_unstable();
        let expired: Vec<NodeId> =
            self.arrived.iter().filter(|(_, arrived)| arrived.deadline <= now).map(|(node, _)| *node).collect();
        let number = self.released + 1;
        let mut answers = Vec::with_capacity(expired.len());
        for node in expired {
            let Some(Arrived { attempt, since, .. }) = self.arrived.remove(&node) else { continue };
            let waited = now.saturating_duration_since(since);
            let rejection = Rejection::BarrierIncomplete { missing: missing.clone(), waited };
            self.failed.insert(node, (attempt, rejection.clone()));
            answers.push((node, Control::BarrierFailed { number, attempt, rejection }));
        }
        answers
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.arrived.values().map(|arrived| arrived.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const BOTH: [(NodeId, Rank); 2] = [(A, Rank(0)), (B, Rank(1))];
    const LIMIT: Duration = Duration::from_secs(5);

    fn entry(number: u64, attempt: u64) -> Entry {
        Entry { number, attempt, timeout: LIMIT }
    }

    #[test]
    fn nobody_leaves_before_the_last_has_arrived_and_repeats_change_nothing() {
        let now = Instant::now();
        let mut barrier = Barrier::default();
        assert!(barrier.enter(now, A, entry(1, 1), &BOTH).is_empty());
        assert!(barrier.enter(now, A, entry(1, 1), &BOTH).is_empty());
        let released = barrier.enter(now, B, entry(1, 1), &BOTH);
        assert_eq!(released.len(), 2);
        // The release was lost; the worker asks again.
        assert_eq!(barrier.enter(now, A, entry(1, 1), &BOTH), [(A, Control::BarrierRelease { number: 1 })]);
        assert!(barrier.enter(now, B, entry(2, 2), &BOTH).is_empty());
        assert!(matches!(barrier.enter(now, A, entry(7, 7), &BOTH)[..], [(A, Control::BarrierFailed { .. })]));
    }

    #[test]
    fn the_deadline_names_who_is_missing_and_a_later_try_succeeds() {
        let now = Instant::now();
        let mut barrier = Barrier::default();
        barrier.enter(now, A, entry(1, 1), &BOTH);
        assert_eq!(barrier.deadline(), Some(now + LIMIT));
        let failed = barrier.handle_timeout(now + LIMIT, &BOTH);
        let [(A, Control::BarrierFailed { number: 1, attempt: 1, rejection })] = &failed[..] else {
            panic!("{failed:?}")
        };
        assert_eq!(*rejection, Rejection::BarrierIncomplete { missing: vec![Rank(1)], waited: LIMIT });
        barrier.enter(now + LIMIT, B, entry(1, 1), &BOTH);
        assert_eq!(barrier.enter(now + LIMIT, A, entry(1, 2), &BOTH).len(), 2);
    }

    #[test]
    fn a_question_that_crossed_the_failure_is_no_new_arrival() {
        let now = Instant::now();
        let mut barrier = Barrier::default();
        barrier.enter(now, A, entry(1, 1), &BOTH);
        let late = now + LIMIT;
        barrier.handle_timeout(late, &BOTH);
        let answers = barrier.enter(late, A, Entry { timeout: Duration::ZERO, ..entry(1, 1) }, &BOTH);
        assert!(matches!(answers[..], [(A, Control::BarrierFailed { attempt: 1, .. })]), "the answer may be lost");
        assert!(barrier.enter(late, B, entry(1, 1), &BOTH).is_empty(), "A has given up for now");
        // A new try has the whole time, also when the old one is still known.
        barrier.enter(late, A, entry(1, 2), &[BOTH[0], BOTH[1], (NodeId(3), Rank(2))]);
        barrier.enter(late + LIMIT / 2, A, entry(1, 3), &[BOTH[0], BOTH[1], (NodeId(3), Rank(2))]);
        barrier.forget(B);
        assert_eq!(barrier.deadline(), Some(late + LIMIT / 2 + LIMIT));
    }

    #[test]
    fn who_is_missing_is_listed_by_rank() {
        const C: NodeId = NodeId(3);
        let now = Instant::now();
        let mut barrier = Barrier::default();
        let workers = [(C, Rank(2)), (A, Rank(0)), (B, Rank(1))];
        barrier.enter(now, A, entry(1, 1), &workers);
        let failed = barrier.handle_timeout(now + LIMIT, &workers);
        let [(A, Control::BarrierFailed { rejection, .. })] = &failed[..] else { panic!("{failed:?}") };
        assert_eq!(*rejection, Rejection::BarrierIncomplete { missing: vec![Rank(1), Rank(2)], waited: LIMIT });
    }

    #[test]
    fn a_worker_that_left_is_not_waited_for_and_a_lost_one_breaks_it() {
        let now = Instant::now();
        let mut barrier = Barrier::default();
        barrier.enter(now, A, entry(1, 1), &BOTH);
        assert_eq!(barrier.release(&BOTH[..1]).len(), 1);
        barrier.enter(now, A, entry(2, 2), &BOTH);
        assert_eq!(barrier.break_for_ever(Rejection::NotAMember).len(), 1);
        assert!(matches!(barrier.enter(now, A, entry(2, 2), &BOTH)[..], [(A, Control::BarrierFailed { .. })]));
    }
}
