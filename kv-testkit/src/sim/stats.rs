//! What happened in one run or in many: the proof that a simulation simulated something.

use std::collections::BTreeMap;
use std::fmt;

use super::plan::Profile;

/// Counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs, by profile.
    pub runs: BTreeMap<Profile, u64>,
    /// Calls submitted.
    pub calls: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Calls whose worker died before they ended.
    pub orphaned: u64,
    /// Contributions to keys.
    pub pushes: u64,
    /// Values read.
    pub pulls: u64,
    /// Barriers passed.
    pub barriers: u64,
    /// Final values that were known exactly and compared.
    pub exact: u64,
    /// Events: messages delivered, link news, timeouts, steps.
    pub events: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Messages lost.
    pub dropped: u64,
    /// Messages doubled.
    pub duplicated: u64,
    /// Messages that arrived before an earlier one of the same link.
    pub overtaken: u64,
    /// Messages lost in a partition.
    pub parted: u64,
    /// Messages held back by a partition.
    pub held_back: u64,
    /// Messages to a node without a link.
    pub unlinked: u64,
    /// Messages that died with their sender.
    pub died: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Nodes stopped for a while.
    pub stalls: u64,
    /// Workers that crashed.
    pub worker_crashes: u64,
    /// Servers that crashed.
    pub server_crashes: u64,
    /// Schedulers that crashed.
    pub scheduler_crashes: u64,
    /// Links cut between living nodes.
    pub cuts: u64,
    /// Messages of nonsense.
    pub garbage: u64,
}

impl Stats {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        for (profile, runs) in &other.runs {
            *self.runs.entry(*profile).or_default() += runs;
        }
        for (mine, (_, theirs)) in self.counts_mut().into_iter().zip(other.counts()) {
            *mine += theirs;
        }
    }

    /// All counts with their names.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, u64); 23] {
        let mut copy = self.clone();
        let mut numbers = copy.counts_mut().into_iter().map(|number| *number);
        NAMES.map(|name| (name, numbers.next().unwrap_or_default()))
    }

    fn counts_mut(&mut self) -> [&mut u64; 23] {
        [
            &mut self.calls,
            &mut self.errors,
            &mut self.orphaned,
            &mut self.pushes,
            &mut self.pulls,
            &mut self.barriers,
            &mut self.exact,
            &mut self.events,
            &mut self.delivered,
            &mut self.dropped,
            &mut self.duplicated,
            &mut self.overtaken,
            &mut self.parted,
            &mut self.held_back,
            &mut self.unlinked,
            &mut self.died,
            &mut self.retries,
            &mut self.stalls,
            &mut self.worker_crashes,
            &mut self.server_crashes,
            &mut self.scheduler_crashes,
            &mut self.cuts,
            &mut self.garbage,
        ]
    }
}

const NAMES: [&str; 23] = [
    "calls",
    "errors",
    "orphaned calls",
    "pushes",
    "pulls",
    "barriers",
    "exact finals",
    "events",
    "delivered",
    "dropped",
    "duplicated",
    "overtaken",
    "lost in partitions",
    "held back by partitions",
    "unlinked",
    "died with the sender",
    "retries",
    "stalls",
    "worker crashes",
    "server crashes",
    "scheduler crashes",
    "cut links",
    "garbage",
];

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs:", self.runs.values().sum::<u64>())?;
        for (profile, runs) in &self.runs {
            write!(f, " {runs} {profile:?}")?;
        }
        for (name, count) in self.counts() {
            write!(f, "\n  {count:>10} {name}")?;
        }
        Ok(())
    }
}
