//! What became of each check.

use std::fmt;

/// What became of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not, with the reason.
    Failed(String),
    /// It was not run, with what is missing.
    Skipped(String),
}

/// What became of every check of a run, in order. Displays as a table.
#[derive(Clone, Debug, Default)]
pub struct Report {
    rows: Vec<(&'static str, Outcome)>,
}

impl Report {
    pub(super) fn add(&mut self, check: &'static str, outcome: Outcome) {
        self.rows.push((check, outcome));
    }

    /// Every check with its outcome.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Outcome)> {
        self.rows.iter().map(|(name, outcome)| (*name, outcome))
    }

    /// What became of the check called `check`; `None` when the run did not contain it.
    #[must_use]
    pub fn outcome(&self, check: &str) -> Option<&Outcome> {
        self.iter().find_map(|(name, outcome)| (name == check).then_some(outcome))
    }

    /// Number of checks that passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.rows.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count()
    }

    /// Number of checks that failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.rows.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).count()
    }

    /// Panics with the table unless no check failed and exactly `passed` of them passed: a check that is skipped by
    /// mistake must not go unnoticed.
    ///
    /// # Panics
    /// See above; this is an assertion of tests.
    pub fn assert_ok(&self, passed: usize) {
        assert!(
            self.failed() == 0 && self.passed() == passed,
            "{} checks passed (expected {passed}), {} failed\n{self}",
            self.passed(),
            self.failed(),
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.rows {
            match outcome {
                Outcome::Passed => writeln!(f, "{name:<40} passed")?,
                Outcome::Failed(reason) => writeln!(f, "{name:<40} FAILED   {reason}")?,
                Outcome::Skipped(reason) => writeln!(f, "{name:<40} skipped  {reason}")?,
            }
        }
        Ok(())
    }
}
