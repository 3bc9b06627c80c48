//! A whole cluster in one thread: the machines of `kv-core` on a simulated network in virtual time.
//!
//! ```text
//!   seed ── plan ──> world: event queue ─> machine ─> actions ─> event queue ...
//!                      │  weather, partitions, crashes, stops, nonsense
//!                      v
//!            history, rosters, trace ──> oracles ──> Ok(stats) or Failure
//! ```
//!
//! Everything follows from one seed: the size of the cluster, its keys, consistency, scripts, weather and faults. No
//! clock is read while it runs, so thousands of seeds take seconds, and a seed that fails does so every time:
//!
//! ```text
//! KV_SIM_SEED=0x1234 cargo test -p kv-testkit --test simulation replay -- --nocapture
//! ```

mod client;
mod garbage;
pub mod history;
pub mod network;
mod node;
pub mod oracle;
pub mod plan;
pub mod reference;
pub mod script;
pub mod stats;
pub mod trace;
pub mod values;
pub mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use plan::{Plan, Profile};
use stats::Stats;
use trace::Keep;
use world::{Run, World};

/// A seed whose run an oracle rejects.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Its profile.
    pub profile: Profile,
    /// What is wrong.
    pub what: String,
    /// The last lines of the trace, or all of it.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, profile, what, trace } = self;
        writeln!(f, "{trace}")?;
        writeln!(f, "seed {seed:#x} ({profile:?}): {what}")?;
        write!(f, "KV_SIM_SEED={seed:#x} cargo test -p kv-testkit --test simulation replay -- --nocapture")
    }
}

impl std::error::Error for Failure {}

/// Runs a seed and judges the run. The hash is that of the trace.
///
/// # Errors
/// What an oracle has to say, or the message of a panic; with the end of the trace.
pub fn run(seed: u64) -> Result<(Stats, u64), Box<Failure>> {
    match attempt(seed, Keep::Hash) {
        Ok(run) => Ok((run.stats, run.trace.hash())),
        // Once more, this time with the text.
        Err(failure) => Err(attempt(seed, Keep::Tail).err().unwrap_or(failure)),
    }
}

/// Runs a seed and keeps the whole trace.
///
/// # Errors
/// As [`run`], with the whole trace.
pub fn replay(seed: u64) -> Result<Run, Box<Failure>> {
    attempt(seed, Keep::All)
}

fn attempt(seed: u64, keep: Keep) -> Result<Run, Box<Failure>> {
    let failure = |what: String, trace: String| Box::new(Failure { seed, profile: Profile::of(seed), what, trace });
    // A panic of a machine is a finding like any other. The world is gone with it, and its trace.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let plan = Plan::of(seed);
        let mut run = World::new(&plan, keep).run();
        let verdict = oracle::judge(&plan, &mut run);
        for call in &run.history.calls {
            run.stats.pushes += call.pushes.len() as u64;
            match &call.done {
                None => run.stats.orphaned += 1,
                Some((_, Err(_))) => run.stats.errors += 1,
                Some((_, Ok(values))) => {
                    run.stats.pulls += values.len() as u64;
                    run.stats.barriers += u64::from(matches!(call.what, history::What::Barrier(_)));
                }
            }
        }
        (run, verdict)
    }));
    match ran {
        Ok((run, Ok(()))) => Ok(run),
        Ok((run, Err(what))) => Err(failure(what, run.trace.text())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(failure(format!("panic: {}", text.unwrap_or_default()), String::new()))
        }
    }
}
