//! The store.

mod asynchronous;
mod blocking;
mod lists;

pub use asynchronous::AsyncKvStore;
pub use blocking::KvStore;
