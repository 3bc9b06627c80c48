//! Whole clusters over TCP in one process, through the public API.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::needless_borrows_for_generic_args, reason = "users pass references; so do the tests")]
#![allow(clippy::type_complexity, reason = "tables of cases")]

mod aliasing;
mod cluster;
mod deadlines;
mod errors;
mod losses;
mod memory;
mod sizes;
mod starting;
mod strangers;
mod sync_rounds;
