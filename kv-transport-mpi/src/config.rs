//! Settings of an MPI van.

use std::time::Duration;

use kv_core::cluster::Role;
use kv_core::van::{InboxLimits, QueueLimits};

use crate::idle::IdlePolicy;

/// Settings of an MPI van. [`MpiConfig::new`] gives the defaults named with each field.
#[derive(Clone, Debug)]
pub struct MpiConfig {
    /// The job; all ranks of a world name the same one. The first 48 bytes are compared.
    pub job: String,
    /// This rank's role; all ranks learn it.
    pub role: Role,
    /// Bounds of the inbox.
    pub inbox: InboxLimits,
    /// Bounds of what is queued and under way to one peer. Default 1024 messages, 16 MiB.
    pub queue: QueueLimits,
    /// Largest part of a message, in bytes. Default 16 GiB.
    pub part_bytes_max: u64,
    /// Parts are carried in pieces of at most this many bytes: MPI counts in 31 bits. Default 1 GiB.
    pub piece_bytes_max: usize,
    /// How long all ranks may take to start. Default 60 s.
    pub start_deadline: Duration,
    /// How long [`close`](kv_core::van::Van::close) waits for the peers to read what was queued. Default 10 s.
    pub close_deadline: Duration,
    /// What is done while nothing happens. By default it depends on the ranks on this host and
    /// on its cores: see [`IdlePolicy`].
    pub idle: Option<IdlePolicy>,
}

impl MpiConfig {
    /// The defaults, for a node of `job`.
    #[must_use]
    pub fn new(job: impl Into<String>, role: Role) -> Self {
        Self {
            job: job.into(),
            role,
            inbox: InboxLimits::default(),
            queue: QueueLimits::default(),
            part_bytes_max: 16 << 30,
            piece_bytes_max: 1 << 30,
            start_deadline: Duration::from_secs(60),
            close_deadline: Duration::from_secs(10),
            idle: None,
        }
    }
}
