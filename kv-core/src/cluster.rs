//! Who is there: node identities, roles, ranks, and the roster that ties them together.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, HEARTBEAT_EVERY_MIN, TIMEOUT_MAX};
use crate::placement::SlotMap;
use crate::van::Endpoint;

/// Identity of one start of one node: 64 random bits, never reused.
///
/// A restarted process is a new node that may be given an old [`Rank`]; late messages of the old incarnation cannot be
/// mistaken for its own. (Under MPI the van derives the id from the rank.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl NodeId {
    /// A fresh identity from the operating system's random source.
    ///
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn random() -> std::io::Result<Self> {
        let bits = getrandom::u64().map_err(std::io::Error::other)?;
        Ok(Self(bits.max(1)))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Keeps the roster, counts barriers, watches heartbeats. One per job.
    Scheduler,
    /// Owns a share of the keys.
    Server,
    /// Computes gradients: pushes and pulls.
    Worker,
    /// Looks (`kv status`); takes no part.
    Observer,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduler => "scheduler",
            Self::Server => "server",
            Self::Worker => "worker",
            Self::Observer => "observer",
        })
    }
}

/// Zero-based number of a node within its role, given by the scheduler (a node may ask for one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub u16);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A node as people speak of it: `worker 1 at tcp://10.0.0.7:41234`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeName {
    /// Its role.
    pub role: Role,
    /// Its rank.
    pub rank: Rank,
    /// Its address.
    pub endpoint: Endpoint,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.role, self.rank, self.endpoint)
    }
}

/// What became of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Takes part.
    Live,
    /// Said goodbye; out of every count.
    Left,
    /// Died or became unreachable, with the reason.
    Lost(String),
}

/// One member of the roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Identity.
    pub node: NodeId,
    /// Role, rank and address.
    pub name: NodeName,
    /// Whether it takes part.
    pub standing: Standing,
}

/// What happens to the others when a worker is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerLoss {
    /// Waits that would need the lost worker end with an error that names it.
    #[default]
    Fail,
    /// Its contributions so far count; rounds and barriers go on without it.
    Continue,
}

/// What all nodes of a job must agree on; decided by the scheduler, carried in the roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobConfig {
    /// Values are cut into chunks of at most this many bytes (a multiple of 8).
    pub chunk_bytes: u32,
    /// What happens when a worker is lost.
    pub worker_loss: WorkerLoss,
    /// Every node sends the scheduler a heartbeat this often.
    pub heartbeat_every: Duration,
    /// A node that has not been heard of for this long is lost.
    pub dead_after: Duration,
}

impl Default for JobConfig {
    fn default() -> Self {
        Self {
            chunk_bytes: crate::limits::CHUNK_BYTES_DEFAULT,
            worker_loss: WorkerLoss::Fail,
            heartbeat_every: Duration::from_secs(1),
            dead_after: Duration::from_secs(10),
        }
    }
}

impl JobConfig {
    /// Whether nodes can work with these settings.
    ///
    /// # Errors
    /// A text that names the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let Self { chunk_bytes, heartbeat_every, dead_after, .. } = self;
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(chunk_bytes) || !chunk_bytes.is_multiple_of(8) {
            let allowed = format!("a multiple of 8 from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}");
            return Err(format!("chunk_bytes is {chunk_bytes}; it must be {allowed}"));
        }
        if !(HEARTBEAT_EVERY_MIN..=TIMEOUT_MAX).contains(heartbeat_every) {
            let allowed = format!("from {HEARTBEAT_EVERY_MIN:?} to {TIMEOUT_MAX:?}");
            return Err(format!("heartbeat_every is {heartbeat_every:?}; it must be {allowed}"));
        }
        // A node must be able to miss a heartbeat and live.
        if *dead_after < heartbeat_every.saturating_mul(2) || *dead_after > TIMEOUT_MAX {
            let allowed = format!("at least twice heartbeat_every ({heartbeat_every:?}), at most {TIMEOUT_MAX:?}");
            return Err(format!("dead_after is {dead_after:?}; it must be {allowed}"));
        }
        Ok(())
    }
}

/// Who is who, at one [`Epoch`]. Only the scheduler makes one; epochs only grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Version of this roster.
    pub epoch: Epoch,
    /// The job's shared settings.
    pub job: JobConfig,
    /// Which server owns which slot.
    pub slots: SlotMap,
    /// Everybody who ever joined, servers and workers.
    pub members: Vec<Member>,
}

/// Version of the roster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u32);

impl Roster {
    /// Members of a role, in joining order.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.name.role == role)
    }

    /// The member with this identity.
    #[must_use]
    pub fn find(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// The servers' identities by rank. A slot map entry indexes into this.
    #[must_use]
    pub fn servers_by_rank(&self) -> Vec<NodeId> {
        let mut servers: Vec<_> = self.of_role(Role::Server).map(|m| (m.name.rank, m.node)).collect();
        servers.sort_unstable();
        servers.into_iter().map(|(_, node)| node).collect()
    }
}
