//! What the applications of a simulated job saw: every call, when it began, when and how it ended.

use std::fmt;
use std::time::Duration;

use kv_core::Error;

use super::values::Number;

/// A point of a run: virtual time, and the order among everything that happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Position in the order of all events of all applications.
    pub order: u64,
    /// Virtual time since the start of the run.
    pub at: Duration,
}

/// What a call was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Keys were initialised.
    Init,
    /// The updater was set.
    SetUpdater,
    /// Pushes, pulls, or both.
    Data,
    /// The worker's n-th barrier call, from 1.
    Barrier(usize),
    /// The last call.
    Leave,
    /// A call behind `Leave`, to be refused.
    AfterLeave,
}

/// What a call gave: the values, in the order of its `pulls`.
pub type Seen = Result<Vec<Vec<Number>>, Error>;

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who called.
    pub rank: usize,
    /// What.
    pub what: What,
    /// Contributions: key and index of the push among the worker's pushes of that key.
    pub pushes: Vec<(usize, usize)>,
    /// Values asked for: key and how many pushes of it this worker had submitted.
    pub pulls: Vec<(usize, usize)>,
    /// When it was submitted.
    pub submitted: Moment,
    /// Its end, when it has one.
    pub done: Option<(Moment, Seen)>,
    /// How often it was completed: once, if all is well.
    pub completions: u32,
}

impl Call {
    /// Whether it ended well.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self.done, Some((_, Ok(_))))
    }

    /// Whether it ended well before `moment`.
    #[must_use]
    pub fn is_ok_before(&self, moment: Moment) -> bool {
        matches!(self.done, Some((done, Ok(_))) if done < moment)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, what, pushes, pulls, .. } = self;
        write!(f, " of rank {rank}: {what:?}, pushes {pushes:?}, pulls {pulls:?}")
    }
}

/// All calls, in the order of their submission.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls; a call's number is its `CallId`.
    pub calls: Vec<Call>,
    next_order: u64,
}

impl History {
    /// The next point of the order.
    pub fn moment(&mut self, at: Duration) -> Moment {
        self.next_order += 1;
        Moment { order: self.next_order, at }
    }

    /// The calls of one rank.
    pub fn of_rank(&self, rank: usize) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| call.rank == rank)
    }

    /// How many pushes of each key a rank has submitted.
    #[must_use]
    pub fn pushed(&self, rank: usize, key: usize) -> usize {
        self.of_rank(rank).flat_map(|call| &call.pushes).filter(|(pushed, _)| *pushed == key).count()
    }
}
