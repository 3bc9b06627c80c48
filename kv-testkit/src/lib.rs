//! What the tests of the kv parameter server share.
//!
//! - [`sim`]: a whole cluster in one thread, with virtual time and seeded faults, and the oracles that judge it

pub mod sim;
