//! What the tests of the transports share: the van conformance suite and a van that misbehaves on purpose.
//!
//! - [`conformance`]: every promise of [`kv_core::van::Van`] as a numbered check, run against any van
//! - [`faulty`]: seeded loss, duplication, delay and reordering on top of any van

pub mod conformance;
pub mod faulty;
