//! Optimizers that run on the servers, beside the values.
//!
//! ```text
//!  worker                                   server
//!  Sgd { learning_rate: 0.1, .. }           UpdaterRegistry: "sgd" -> decoder
//!    │ Optimizer::spec()                        │
//!    ▼                                          ▼
//!  UpdaterSpec { name: "sgd",  ── wire ──►  decode: version, fields and ranges are checked
//!    settings: {"version":1,...} }              │
//!                                               ▼
//!                                           Updater::update(step, weight, state, gradient)
//! ```
//!
//! What travels is a name and JSON, never code: a server runs only what it was built with. Every field is checked,
//! on the client before it travels and on the server again; an unknown field is an error, nothing is ignored.
//!
//! ```
//! use kv_optim::{Optimizer, Sgd};
//!
//! let spec = Sgd::new(0.1).momentum(0.9).spec()?;
//! assert_eq!(spec.name, "sgd");
//! assert!(Sgd::new(f64::NAN).spec().is_err());
//! # Ok::<(), kv_core::Error>(())
//! ```

mod sgd;
mod spec;

use kv_core::Error;
use kv_core::updater::UpdaterRegistry;
use kv_core::wire::UpdaterSpec;

pub use sgd::Sgd;

/// Adds every round to the value: the counter's rule, Multiverso's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accumulate;

impl Optimizer for Accumulate {
    fn spec(&self) -> Result<UpdaterSpec, Error> {
        Ok(kv_core::updater::Accumulate::spec())
    }
}

/// An optimizer that can be sent to the servers.
pub trait Optimizer {
    /// Its form on the wire.
    ///
    /// # Errors
    /// [`Error::Updater`] that names the setting that makes no sense and the range it may have.
    fn spec(&self) -> Result<UpdaterSpec, Error>;
}

/// Adds every optimizer of this crate to what a server knows.
pub fn register(registry: &mut UpdaterRegistry) {
    registry.register(sgd::NAME, spec::decode::<Sgd>);
}
