//! Machines decide. They are plain state: no clock, no socket, no thread, no async, no randomness.
//!
//! All of them have the same shape ([`Machine`]): something arrives, the time is given, and what is to be done is
//! appended to a list that the caller owns and drains right after the call. Whoever drives them (a driver of
//! [`crate::driver`], the `local` store, the simulator of `kv-testkit`) makes it happen.
//!
//! Machines are total: any bytes from a peer give a defined result, an error reply or a counted drop, never a panic.

mod barrier;
mod calls;
mod known_keys;
mod member;
mod outgoing;
mod rank_set;
mod round;
mod scheduler;
mod server;
mod server_link;
mod server_node;
mod shard;
mod waiting;
mod window;
mod worker;
mod worker_node;

use std::time::Instant;

use crate::cluster::{NodeId, Rank};
use crate::error::Error;
use crate::tensor::Tensor;
use crate::van::{Endpoint, VanError};
use crate::wire::Message;

pub use calls::{CallId, Op, Value};
pub use member::{MemberConfig, Resend};
pub use scheduler::{Scheduler, SchedulerConfig};
pub use server::{Server, ServerConfig};
pub use server_node::ServerNode;
pub use worker::{Worker, WorkerConfig};
pub use worker_node::WorkerNode;

/// The common shape.
pub trait Machine {
    /// A message from `from` arrived.
    fn handle(&mut self, now: Instant, from: NodeId, message: Message, out: &mut Vec<Action>);

    /// Something happened to a link.
    fn handle_link(&mut self, now: Instant, event: LinkEvent, out: &mut Vec<Action>);

    /// The time asked for by [`Machine::deadline`] has come (or any other time).
    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Action>);

    /// When [`Machine::handle_timeout`] wants to be called next.
    fn deadline(&self) -> Option<Instant>;
}

/// News of links.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// A connection asked for is there.
    Up {
        /// The address asked for.
        endpoint: Endpoint,
        /// Who answered.
        node: NodeId,
    },
    /// A connection asked for failed.
    Unreachable {
        /// The address asked for.
        endpoint: Endpoint,
        /// Why.
        reason: VanError,
    },
    /// A link is gone.
    Down {
        /// The peer.
        node: NodeId,
        /// Why.
        reason: VanError,
    },
}

/// What a machine wants done, in order.
#[derive(Debug)]
pub enum Action {
    /// Send a message; messages to one node keep their order.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Open a link; answered by [`LinkEvent::Up`] or [`LinkEvent::Unreachable`].
    Connect {
        /// Where.
        endpoint: Endpoint,
    },
    /// A call of the application is finished.
    Complete {
        /// Which.
        call: CallId,
        /// How.
        result: Result<Outcome, Error>,
    },
    /// This node takes part in the job now.
    Joined(Joined),
    /// The machine is done; the driver flushes, closes the van and returns this.
    Stop(Result<(), Error>),
}

/// What a call gives.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Nothing but its success.
    Done,
    /// The values asked for, in the order of the keys.
    Values(Vec<Tensor>),
}

/// A node's place in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its rank.
    pub rank: Rank,
    /// Workers of the job.
    pub workers: u16,
    /// Servers of the job.
    pub servers: u16,
}
