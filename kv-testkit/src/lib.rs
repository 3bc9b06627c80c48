//! What the tests of the kv parameter server share.
//!
//! ```text
//!  conformance        any Van: memory, tcp, ...      every promise of the trait, as a numbered check
//!  faulty             FaultyVan<any Van>             drops, doubles, delays, reorders, by a seed
//!  sim                machines without any van       a whole cluster on virtual time, judged by oracles
//! ```
//!
//! - [`conformance`]: every promise of [`kv_core::van::Van`] as a numbered check, run against any van
//! - [`faulty`]: seeded loss, duplication, delay and reordering on top of any van
//! - [`sim`]: a whole cluster in one thread, with virtual time and seeded faults, and the oracles that judge it

pub mod conformance;
pub mod faulty;
pub mod sim;
