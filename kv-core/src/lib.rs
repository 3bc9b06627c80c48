//! The core of the kv parameter server: keys, values, consistency, wire format, the [`Van`] trait, the machines that
//! decide, and the drivers that run them.
//!
//! ```text
//!   KvStore (crate kv)                    kv server                     kv scheduler
//!        │ operations                          │                             │
//!  ┌─────┴──────────────┐             ┌────────┴────────┐          ┌─────────┴────────┐
//!  │ driver: awaits     │             │ driver          │          │ driver           │
//!  │  machine: decides  │             │  server machine │          │  membership,     │
//!  │  (worker)          │             │  rounds, shard  │          │  barrier         │
//!  └─────┬──────────────┘             └────────┬────────┘          └─────────┬────────┘
//!        └──────── Van: carries opaque messages between nodes ───────────────┘
//! ```
//!
//! - *vocabulary*: [`Key`], [`DType`], [`Tensor`], [`cluster`], [`Consistency`], [`placement`], [`limits`]
//! - *wire*: [`wire`], a 64-byte header and up to four shared buffers
//! - *van*: [`van`], the seam to the transports, with the in-process [`van::MemoryVan`]
//! - *machines*: plain state, no clock, no socket, no thread, no async
//! - *drivers*: the only place that awaits

mod buffer;
pub mod cluster;
mod consistency;
pub mod driver;
mod dtype;
pub mod error;
mod key;
pub mod limits;
pub mod machine;
pub mod placement;
pub mod sum;
mod tensor;
pub mod updater;
pub mod van;
pub mod wire;

pub use buffer::Buffer;
pub use consistency::Consistency;
pub use dtype::{DType, Element};
pub use error::Error;
pub use half;
pub use key::{Key, KeyId};
pub use tensor::{AsTensor, Tensor, TensorRef, byte_len};
pub use van::{Endpoint, Inbox, Van, VanError};
