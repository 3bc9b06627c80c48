//! The application of a simulated worker: follows its script, and writes down what it sees.

use std::collections::BTreeSet;
use std::time::Duration;

use kv_core::Error;
use kv_core::machine::{CallId, Op, Outcome};
use kv_core::updater::Accumulate;

use super::history::{Call, History, What};
use super::plan::Plan;
use super::script::{Script, Step};
use super::values::numbers;

/// One worker's application.
pub(super) struct Client {
    pub(super) rank: usize,
    script: Script,
    next: usize,
    /// Open calls.
    open: BTreeSet<CallId>,
    /// Pushes submitted so far, by key.
    pushed: Vec<usize>,
    barriers: usize,
    left: bool,
    /// The barrier it waits in: what comes after it is submitted after it.
    fence: Option<CallId>,
    /// Whether the next step waits for a completion.
    waits: bool,
}

/// What the application wants of its worker.
pub(super) enum Wish {
    Call(CallId, Op, i32),
    Barrier(CallId),
    /// Nothing before an open call is complete, or for ever.
    Nothing,
}

impl Client {
    pub(super) fn new(plan: &Plan, rank: usize) -> Self {
        Self {
            rank,
            script: plan.scripts[rank].clone(),
            next: 0,
            open: BTreeSet::new(),
            pushed: vec![0; plan.keys.len()],
            barriers: 0,
            left: false,
            fence: None,
            waits: false,
        }
    }

    /// Longest pause between two steps.
    pub(super) fn think(&self) -> Duration {
        self.script.think
    }

    /// Takes the next step.
    pub(super) fn step(&mut self, plan: &Plan, history: &mut History, now: Duration, priority: i32) -> Wish {
        while self.script.steps.get(self.next) == Some(&Step::Drain) && self.open.is_empty() {
            self.next += 1;
        }
        let Some(step) = self.script.steps.get(self.next).cloned() else { return Wish::Nothing };
        // Leaving and what comes behind it never waits for room: that the calls before it are open is the point.
        let has_room = self.open.len() < self.script.window || self.left;
        if step == Step::Drain || !has_room || self.fence.is_some() {
            self.waits = true;
            return Wish::Nothing;
        }
        self.next += 1;
        let id = CallId(history.calls.len() as u64);
        let mut call = Call {
            rank: self.rank,
            what: What::Data,
            pushes: Vec::new(),
            pulls: Vec::new(),
            submitted: history.moment(now),
            done: None,
            completions: 0,
        };
        let wish = match step {
            Step::Init(keys) => {
                call.what = What::Init;
                let entry = |key: usize| {
                    let spec = &plan.keys[key];
                    // Only rank 0's values count; the others' must not matter.
                    let values = if self.rank == 0 { spec.initial() } else { spec.gradient(self.rank, 0) };
                    (spec.key.clone(), spec.tensor(&values))
                };
                Wish::Call(id, Op::Init(keys.into_iter().map(entry).collect()), priority)
            }
            Step::SetUpdater => {
                call.what = What::SetUpdater;
                Wish::Call(id, Op::SetUpdater(Accumulate::spec()), priority)
            }
            Step::Push(keys) => {
                let entries = self.contribute(plan, &keys, &mut call);
                Wish::Call(id, Op::Push(entries), priority)
            }
            Step::PushPull(keys) => {
                let entries = self.contribute(plan, &keys, &mut call);
                call.pulls = keys.iter().map(|&key| (key, self.pushed[key])).collect();
                Wish::Call(id, Op::PushPull(entries), priority)
            }
            Step::Pull(keys) => {
                if self.left {
                    call.what = What::AfterLeave;
                }
                call.pulls = keys.iter().map(|&key| (key, self.pushed[key])).collect();
                Wish::Call(id, Op::Pull(keys.iter().map(|&key| plan.keys[key].key.clone()).collect()), priority)
            }
            Step::Barrier => {
                self.barriers += 1;
                call.what = What::Barrier(self.barriers);
                // An application that leaves does not always wait for its last barrier.
                let leaves = matches!(self.script.steps.get(self.next), Some(Step::Leave));
                self.fence = (!leaves).then_some(id);
                Wish::Barrier(id)
            }
            Step::Leave => {
                call.what = What::Leave;
                self.left = true;
                Wish::Call(id, Op::Leave, priority)
            }
            Step::Drain => Wish::Nothing,
        };
        history.calls.push(call);
        self.open.insert(id);
        wish
    }

    fn contribute(
        &mut self,
        plan: &Plan,
        keys: &[usize],
        call: &mut Call,
    ) -> Vec<(kv_core::Key, kv_core::machine::Value)> {
        keys.iter()
            .map(|&key| {
                let (spec, index) = (&plan.keys[key], self.pushed[key]);
                self.pushed[key] += 1;
                call.pushes.push((key, index));
                (spec.key.clone(), spec.value(&spec.gradient(self.rank, index)))
            })
            .collect()
    }

    /// A call is complete. Returns whether the script goes on now.
    pub(super) fn completed(
        &mut self,
        history: &mut History,
        now: Duration,
        id: CallId,
        result: Result<Outcome, Error>,
    ) -> bool {
        self.open.remove(&id);
        self.fence = self.fence.filter(|fence| *fence != id);
        let moment = history.moment(now);
        if let Some(call) = history.calls.get_mut(id.0 as usize) {
            call.completions += 1;
            let values = result.map(|outcome| match outcome {
                Outcome::Done => Vec::new(),
                Outcome::Values(values) => values.iter().map(numbers).collect(),
            });
            call.done.get_or_insert((moment, values));
        }
        std::mem::take(&mut self.waits)
    }
}
