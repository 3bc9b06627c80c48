//! Whole clusters over TCP in one process, through the public API.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aliasing;
mod cluster;
mod deadlines;
mod errors;
mod losses;
mod sizes;
mod starting;
mod strangers;
mod sync_rounds;
