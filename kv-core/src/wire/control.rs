//! Messages between nodes and the scheduler.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::data::{DataError, decode_part, encode_part};
use super::header::Kind;
use super::message::Message;
use crate::cluster::{Epoch, NodeId, NodeName, Rank, Role, Roster, Standing};
use crate::error::Rejection;
use crate::van::Endpoint;

/// Everything said between a node and the scheduler. Each may be lost or doubled: requests are repeated until
/// answered, and repeating one changes nothing. Variants are only ever appended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// Node to scheduler, repeated: I want to take part.
    Join(JoinRequest),
    /// Scheduler to node: not all are here yet.
    Waiting(Waiting),
    /// Scheduler to node: you will never be let in.
    JoinRefused(String),
    /// Scheduler to node: who is who. Repeated until the node's heartbeats carry its epoch.
    Roster(Roster),
    /// Node to scheduler, regularly: I live, and this is what I hold.
    Heartbeat(NodeStats),
    /// Scheduler to node: heard you.
    HeartbeatAck,
    /// Worker to scheduler, repeated: I have arrived at barrier `number`.
    BarrierEnter {
        /// Number of the barrier, from 1.
        number: u64,
        /// Which try of this worker it is, ascending: a failed barrier is entered again by its old number.
        attempt: u64,
        /// How long the scheduler may make it wait.
        timeout: Duration,
    },
    /// Scheduler to worker: everybody was there.
    BarrierRelease {
        /// Number of the barrier.
        number: u64,
    },
    /// Scheduler to worker: it will not complete.
    BarrierFailed {
        /// Number of the barrier.
        number: u64,
        /// The try that failed.
        attempt: u64,
        /// Why.
        rejection: Rejection,
    },
    /// Node to scheduler: the link to this member broke although neither of us left.
    PeerLost {
        /// The member.
        node: NodeId,
        /// What was seen.
        reason: String,
    },
    /// Worker to scheduler, repeated: I am done.
    Leave,
    /// Scheduler to worker: you are out of every count.
    LeaveAck,
    /// Scheduler to everybody: the job is over. `failed` says why, when it did not end well.
    Shutdown {
        /// The reason, when the job failed.
        failed: Option<String>,
    },
    /// Observer to scheduler.
    StatusRequest,
    /// Scheduler to observer.
    Status(StatusReport),
}

/// Who wants to join, and as what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Role.
    pub role: Role,
    /// The rank it would like.
    pub rank: Option<Rank>,
    /// Where others reach it.
    pub endpoint: Endpoint,
}

/// How far a job has gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Workers that have joined, of how many.
    pub workers: (u16, u16),
    /// Servers that have joined, of how many.
    pub servers: (u16, u16),
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (workers, servers) = (self.workers, self.servers);
        write!(f, "{} of {} workers and {} of {} servers have joined", workers.0, workers.1, servers.0, servers.1)
    }
}

/// What a node says of itself with each heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Roster it knows.
    pub epoch: Epoch,
    /// Keys of which it holds at least one chunk (server).
    pub keys: u64,
    /// Bytes of values it holds (server).
    pub value_bytes: u64,
    /// Updates applied to chunks (server).
    pub rounds: u64,
    /// Pushes accepted (server) or made (worker).
    pub pushes: u64,
    /// Pulls answered (server) or made (worker).
    pub pulls: u64,
    /// Requests refused, and messages dropped because nothing sensible could be done with them.
    pub refused: u64,
}

/// What `kv status` shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// How far the job has gathered.
    pub waiting: Waiting,
    /// Version of the roster.
    pub epoch: Epoch,
    /// Everybody who has joined.
    pub nodes: Vec<NodeStatus>,
}

/// One node in a status report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Identity.
    pub node: NodeId,
    /// Role, rank and address; the rank is provisional until all have joined.
    pub name: NodeName,
    /// Whether it takes part.
    pub standing: Standing,
    /// Time since it was last heard of.
    pub last_heard: Duration,
    /// What it said last.
    pub stats: NodeStats,
}

impl Control {
    /// As a message.
    ///
    /// # Errors
    /// [`DataError`] when it is too long (a roster beyond the limit).
    pub fn to_message(&self) -> Result<Message, DataError> {
        Ok(Message::new(Kind::Control).with_part(0, encode_part(self)?))
    }

    /// From a message of kind [`Kind::Control`].
    ///
    /// # Errors
    /// [`DataError`] for anything this version would not have written.
    pub fn of_message(message: &Message) -> Result<Self, DataError> {
        decode_part(message.part(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_part::<Control>(&bytes);
            let _ = decode_part::<Rejection>(&bytes);
            let _ = decode_part::<Vec<super::super::KeyMeta>>(&bytes);
        }
    }

    #[test]
    fn hostile_lengths_reserve_nothing() {
        // A roster with 2^60 members: variant 3, epoch, job..., all varints at their maximum.
        let mut bytes = vec![3, 0];
        bytes.extend([0xff; 200]);
        assert!(decode_part::<Control>(&bytes).is_err());
    }
}
