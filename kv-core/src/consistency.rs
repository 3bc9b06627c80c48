//! When a push is applied and when a pull is answered.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The consistency of a key: fixed at `init`, the same for all workers.
///
/// The unit is a *round of a key*: a worker's r-th push of key k belongs to round r of k. Contributions are counted by
/// (worker, round), never by the number of requests.
///
/// | mode | a push is applied | a pull is answered |
/// |---|---|---|
/// | `Sync` | when every live worker has contributed to the round: sum, then one update | when every round this worker contributed to has been applied |
/// | `Async` | on arrival | at once; the worker's own acknowledged pushes are visible |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// Bulk-synchronous rounds.
    Sync {
        /// Sum each round in worker-rank order, bit-identical from run to run; else in order of arrival.
        deterministic: bool,
    },
    /// Every push on its own.
    Async,
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync { deterministic: false } => "sync",
            Self::Sync { deterministic: true } => "sync, deterministic",
            Self::Async => "async",
        })
    }
}
