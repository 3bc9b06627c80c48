//! The oracles are tested, too: fabricated histories, right and wrong. An oracle that accepts everything would let
//! every simulation pass.

use std::time::Duration;

use kv_core::cluster::{Epoch, Member, NodeId, NodeName, Rank, Role, Roster, Standing};
use kv_core::placement::SlotMap;
use kv_core::{Consistency, DType, Endpoint, Error, Key};

use super::{barriers, completion, ends, replicas, roster, sums, synchronous};
use crate::sim::history::{Call, History, Seen, What};
use crate::sim::plan::{Plan, Profile};
use crate::sim::stats::Stats;
use crate::sim::trace::{Keep, Trace};
use crate::sim::values::{KeySpec, Number};
use crate::sim::world::{End, Run};

const SYNC: Consistency = Consistency::Sync { deterministic: true };

/// A calm job of two workers and one key, which accumulates.
fn plan(consistency: Consistency) -> Plan {
    let mut plan = Plan::of(0);
    assert_eq!(plan.profile, Profile::Perfect);
    plan.keys = vec![KeySpec { key: Key::from("w"), dtype: DType::I64, len: 3, wild: false }];
    (plan.workers, plan.servers, plan.consistency, plan.accumulate) = (2, 1, consistency, true);
    plan.faults.clear();
    plan.weather.partitions.clear();
    plan
}

/// Writes histories down.
#[derive(Default)]
struct Book(History);

impl Book {
    fn open(&mut self, rank: usize, what: What, pushes: &[usize], pulls: &[usize]) -> usize {
        let submitted = self.0.moment(Duration::ZERO);
        let with_key = |numbers: &[usize]| numbers.iter().map(|&number| (0, number)).collect();
        let (pushes, pulls) = (with_key(pushes), with_key(pulls));
        self.0.calls.push(Call { rank, what, pushes, pulls, submitted, done: None, completions: 0 });
        self.0.calls.len() - 1
    }

    fn close(&mut self, call: usize, result: Seen) {
        let moment = self.0.moment(Duration::ZERO);
        self.0.calls[call].done = Some((moment, result));
        self.0.calls[call].completions += 1;
    }

    fn whole(&mut self, rank: usize, what: What, pushes: &[usize]) {
        let call = self.open(rank, what, pushes, &[]);
        self.close(call, Ok(Vec::new()));
    }

    fn pulled(&mut self, rank: usize, after: usize, value: Vec<Number>) {
        let call = self.open(rank, What::Data, &[], &[after]);
        self.close(call, Ok(vec![value]));
    }
}

/// Both workers push once; what they pull is the initial value and these pushes, as (rank, index).
fn one_round(consistency: Consistency, seen: [&[(usize, usize)]; 2]) -> (Plan, History) {
    let (plan, mut book) = (plan(consistency), Book::default());
    (0..2).for_each(|rank| book.whole(rank, What::SetUpdater, &[]));
    (0..2).for_each(|rank| book.whole(rank, What::Data, &[0]));
    for (rank, seen) in seen.into_iter().enumerate() {
        let value = value_with(&plan, seen);
        book.pulled(rank, 1, value);
    }
    (plan, book.0)
}

fn value_with(plan: &Plan, pushes: &[(usize, usize)]) -> Vec<Number> {
    let key = &plan.keys[0];
    pushes.iter().fold(key.initial(), |value, &(rank, index)| {
        value.iter().zip(key.gradient(rank, index)).map(|(a, b)| a.plus(b)).collect()
    })
}

#[test]
fn a_push_lost_doubled_or_seen_too_late_is_caught() {
    let both: &[(usize, usize)] = &[(0, 0), (1, 0)];
    let wrong: [&[(usize, usize)]; 4] = [&[(0, 0)], &[], &[(0, 0), (1, 0), (1, 0)], &[(0, 0), (0, 0)]];
    for consistency in [SYNC, Consistency::Async] {
        let (plan, history) = one_round(consistency, [both, both]);
        // What belongs to a synchronous round is the reference's knowledge, not that of the bounds.
        let exact = if consistency == SYNC { 0 } else { 2 };
        assert_eq!(sums::check(&plan, &history), Ok(exact));
        synchronous::check(&plan, &history).unwrap();
        replicas::check(&plan, &history).unwrap();
        for seen in wrong {
            let (plan, history) = one_round(consistency, [both, seen]);
            let caught = [
                sums::check(&plan, &history).is_err(),
                synchronous::check(&plan, &history).is_err(),
                replicas::check(&plan, &history).is_err(),
            ];
            assert_eq!(caught[1..], [consistency == SYNC; 2], "{seen:?}");
            assert!(caught[0] || consistency == SYNC, "{seen:?}");
        }
    }
}

#[test]
fn a_round_of_requests_instead_of_workers_is_caught() {
    // MXNet's rule: any two pushes close a round, so rank 0's two pushes do.
    let (plan, mut book) = (plan(SYNC), Book::default());
    (0..2).for_each(|rank| book.whole(rank, What::SetUpdater, &[]));
    (0..2).for_each(|index| book.whole(0, What::Data, &[index]));
    (0..2).for_each(|index| book.whole(1, What::Data, &[index]));
    let right = value_with(&plan, &[(0, 0), (1, 0), (0, 1), (1, 1)]);
    let mut good = Book(book.0.clone());
    good.pulled(0, 2, right);
    assert_eq!(synchronous::check(&plan, &good.0), Ok(1));
    let wrong = value_with(&plan, &[(0, 0), (0, 1)]);
    book.pulled(0, 2, wrong);
    assert!(synchronous::check(&plan, &book.0).is_err());
}

#[test]
fn another_order_of_addition_is_caught() {
    let (mut plan, mut book) = (plan(SYNC), Book::default());
    plan.workers = 3;
    plan.keys[0] = KeySpec { key: Key::from("w"), dtype: DType::F32, len: 100, wild: true };
    (0..3).for_each(|rank| book.whole(rank, What::Data, &[0]));
    let key = plan.keys[0].clone();
    let sum = |order: [usize; 3]| -> Vec<Number> {
        let parts = order.map(|rank| key.gradient(rank, 0));
        let at = |e: usize| parts[0][e].plus(parts[1][e]).plus(parts[2][e]);
        key.initial().iter().enumerate().map(|(e, initial)| initial.plus(at(e))).collect()
    };
    for (order, accepted) in [([0, 1, 2], true), ([2, 1, 0], false)] {
        let mut book = Book(book.0.clone());
        book.pulled(0, 1, sum(order));
        assert_eq!(synchronous::check(&plan, &book.0).is_ok(), accepted);
    }
}

#[test]
fn a_push_whose_outcome_is_unknown_brackets_the_value() {
    let mut plan = plan(Consistency::Async);
    plan.profile = Profile::WorkerCrash;
    for (times, accepted) in [(0, true), (1, true), (2, false)] {
        let mut book = Book::default();
        book.whole(0, What::SetUpdater, &[]);
        book.open(1, What::Data, &[0], &[]);
        let value = value_with(&plan, &vec![(1, 0); times]);
        book.pulled(0, 0, value);
        assert_eq!(sums::check(&plan, &book.0).is_ok(), accepted, "applied {times} times");
    }
}

#[test]
fn without_accumulation_an_old_value_of_ones_own_is_caught() {
    let mut plan = plan(Consistency::Async);
    plan.accumulate = false;
    let key = plan.keys[0].clone();
    for (value, accepted) in [(key.gradient(0, 1), true), (key.gradient(0, 0), false), (key.initial(), false)] {
        let mut book = Book::default();
        (0..2).for_each(|index| book.whole(0, What::Data, &[index]));
        book.pulled(0, 2, value);
        assert_eq!(sums::check(&plan, &book.0).is_ok(), accepted);
    }
}

#[test]
fn a_barrier_passed_too_early_is_caught() {
    let plan = plan(Consistency::Async);
    let worker = |rank| End { role: Role::Worker, rank: Some(rank), crashed: false, stopped: Some(Ok(())) };
    let ends = [worker(0), worker(1)];
    let mut early = Book::default();
    early.whole(0, What::Barrier(1), &[]);
    early.whole(1, What::Barrier(1), &[]);
    assert!(barriers::check(&plan, &early.0, &ends).is_err(), "rank 1 had not arrived");

    let mut book = Book::default();
    let push = book.open(1, What::Data, &[0], &[]);
    let calls = [book.open(0, What::Barrier(1), &[], &[]), book.open(1, What::Barrier(1), &[], &[])];
    let mut good = Book(book.0.clone());
    good.close(push, Ok(Vec::new()));
    calls.iter().for_each(|call| good.close(*call, Ok(Vec::new())));
    barriers::check(&plan, &good.0, &ends).unwrap();
    calls.iter().for_each(|call| book.close(*call, Ok(Vec::new())));
    assert!(barriers::check(&plan, &book.0, &ends).is_err(), "rank 1's push was not acknowledged");

    let mut left = Book::default();
    left.whole(1, What::Leave, &[]);
    left.whole(0, What::Barrier(1), &[]);
    barriers::check(&plan, &left.0, &ends).unwrap();
}

fn run(history: History) -> Run {
    let stopped = |role| End { role, rank: Some(0), crashed: false, stopped: Some(Ok(())) };
    Run {
        history,
        rosters: Vec::new(),
        ends: vec![stopped(Role::Scheduler), stopped(Role::Server), stopped(Role::Worker)],
        ended_at: Duration::from_secs(1),
        stats: Stats::default(),
        trace: Trace::new(Keep::Hash),
    }
}

#[test]
fn calls_open_doubled_late_or_failed_for_no_reason_are_caught() {
    let plan = plan(SYNC);
    let mut good = Book::default();
    good.whole(0, What::Data, &[0]);
    let judge = |change: &dyn Fn(&mut Call)| {
        let mut history = good.0.clone();
        change(&mut history.calls[0]);
        completion::check(&plan, &run(history))
    };
    judge(&|_| {}).unwrap();
    assert!(judge(&|call| call.done = None).is_err());
    assert!(judge(&|call| call.completions = 2).is_err());
    assert!(judge(&|call| call.done.as_mut().unwrap().1 = Err(Error::Closed)).is_err());
    assert!(judge(&|call| call.done.as_mut().unwrap().0.at = Duration::from_secs(3600)).is_err());
    assert!(judge(&|call| call.what = What::AfterLeave).is_err());
}

#[test]
fn a_node_that_does_not_end_well_is_caught() {
    let plan = plan(SYNC);
    let judge = |stopped| {
        let mut run = run(History::default());
        run.ends[1].stopped = stopped;
        ends::check(&plan, &run)
    };
    judge(Some(Ok(()))).unwrap();
    assert!(judge(None).is_err());
    assert!(judge(Some(Err("because".to_owned()))).is_err());
}

#[test]
fn rosters_that_contradict_each_other_are_caught() {
    let plan = plan(SYNC);
    let member = |node, role, rank, standing| {
        let name = NodeName { role, rank: Rank(rank), endpoint: Endpoint(String::new()) };
        Member { node: NodeId(node), name, standing }
    };
    let roster_of = |epoch, first: u64, standing: Standing| Roster {
        epoch: Epoch(epoch),
        job: plan.job.clone(),
        slots: SlotMap::even(1),
        members: vec![
            member(1, Role::Server, 0, Standing::Live),
            member(first, Role::Worker, 0, standing),
            member(9, Role::Worker, 1, Standing::Live),
        ],
    };
    let judge = |rosters: &[Roster]| roster::check(&plan, rosters);
    let (live, left) = (roster_of(1, 2, Standing::Live), roster_of(2, 2, Standing::Left));
    judge(&[live.clone(), live.clone(), left.clone()]).unwrap();
    assert!(judge(&[left.clone(), live.clone()]).is_err(), "the epoch shrinks");
    assert!(judge(&[left, roster_of(3, 2, Standing::Live)]).is_err(), "back from the dead");
    assert!(judge(&[live.clone(), roster_of(2, 3, Standing::Live)]).is_err(), "another holder of the rank");
    assert!(judge(&[live.clone(), roster_of(1, 2, Standing::Left)]).is_err(), "one epoch, two rosters");
    assert!(judge(&[roster_of(1, 9, Standing::Live), live]).is_err(), "another holder, too");
}
