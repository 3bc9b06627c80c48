//! The MPI van: kv messages between the ranks of one MPI world.

mod config;
mod ending;
mod engine;
mod error;
mod frame;
mod idle;
mod requests;
mod shared;
mod transfer;
mod van;
mod world;

pub use ending::{end, wait_for_the_end};

pub use config::MpiConfig;
pub use error::MpiError;
pub use idle::IdlePolicy;
pub use van::MpiVan;
