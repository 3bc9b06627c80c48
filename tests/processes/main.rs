//! The built command line, as real processes.

#![cfg(all(feature = "cli", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "the lint sees no test in the functions that tests share")]

mod by_rank;
mod job;
mod killed;
mod launch;
mod status;
mod train;
