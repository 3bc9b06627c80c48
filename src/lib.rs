//! **kv** is a parameter server: workers push gradients to it and pull weights from it, and the optimizer runs on the
//! servers, beside the values.
//!
//! ```text
//!   your training code                                        kv server (any number)
//!  ┌──────────────────┐   push(key, gradient)  ──────────►  ┌───────────────────────┐
//!  │ KvStore          │                                      │ rounds: sum per key   │
//!  │  local           │   pull(key)            ◄──────────  │ optimizer -> value    │
//!  │  dist_sync       │                                      └───────────────────────┘
//!  │  dist_async      │   barrier, heartbeats  ◄─────────►  kv scheduler (one per job)
//!  └──────────────────┘
//! ```
//!
//! The smallest program; change `"local"` to `"dist_sync"` and start it with `kv launch` to distribute it:
//!
//! ```
//! use kv::KvStore;
//! use kv::optim::Sgd;
//!
//! let store = KvStore::create("local")?;
//! store.init("weight", &[0.0_f32; 4])?;
//! store.set_optimizer(&Sgd::new(0.1))?;
//! for _ in 0..10 {
//!     let gradient = [1.0_f32; 4];
//!     store.push("weight", &gradient)?.wait()?;
//! }
//! let weight = store.pull("weight")?.wait()?;
//! assert!((weight.as_slice::<f32>()?[0] + 1.0).abs() < 1e-6);
//! store.close()?;
//! # Ok::<(), kv::Error>(())
//! ```
//!
//! - [`KvStore`] is the store for plain blocking code, [`AsyncKvStore`] the same for async code;
//! - [`optim`] has the optimizers;
//! - [`config`] the settings of a node, from code, environment and file;
//! - [`node`] the other roles, scheduler and server.
//!
//! Everything else lives in the crates below: `kv-core` (machines, wire, the `Van` seam), `kv-transport-*`, `kv-optim`.

mod builder;
pub mod config;
mod io_loop;
mod kind;
pub mod node;
mod pending;
mod private_folder;
mod session;
mod spin;
mod store;
pub mod transport;

pub use builder::Builder;
pub use kind::StoreKind;
pub use kv_core::updater;
pub use kv_core::{AsTensor, Consistency, DType, Element, Error, Key, Tensor};
pub use kv_optim as optim;
pub use pending::Pending;
pub use store::{AsyncKvStore, KvStore};
pub use transport::names as transports;
