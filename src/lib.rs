//! kv.

pub mod config;
pub mod transport;

pub use config::{NodeConfig, Settings};
