//! The van conformance suite: every promise of the [`Van`] contract as a numbered check.
//!
//! The suite is SPMD: a check is one async function that all ranks run, branching on their rank, so the same checks
//! run in two ways.
//!
//! ```text
//!  run(harness)                                    run_as_rank(harness, rank, signals)
//!  one process, a task per rank                    one process per rank (MPI)
//!  fresh vans for every check                      one van for the whole run
//!  every check                                     the checks that leave the van usable; the closing one last
//! ```
//!
//! A check never waits for time to pass. Ranks meet at barriers made of messages; a rank that must *not* read its
//! inbox waits for a [`Signals`] event, which travels beside the van. Every check has a deadline, and a check that
//! does not end is a failure that says what each rank was doing.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use kv_core::van::{Inbox, InboxLimits, MemoryHub, Van};
//! # use kv_core::cluster::NodeId;
//! use kv_testkit::conformance::{Harness, run};
//!
//! struct Memory(MemoryHub);
//!
//! #[async_trait::async_trait]
//! impl Harness for Memory {
//!     async fn node(&self, _rank: usize) -> (Arc<dyn Van>, Inbox) {
//!         let node = NodeId::random().expect("randomness");
//!         let (van, inbox) = self.0.bind(node, InboxLimits::default()).expect("a fresh identity");
//!         (Arc::new(van), inbox)
//!     }
//! }
//!
//! # async fn example() {
//! run(Memory(MemoryHub::new())).await.assert_ok(18);
//! # }
//! ```

mod delivery;
mod links;
mod misuse;
mod node;
mod pressure;
mod report;
mod runner;
mod signals;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use kv_core::van::{Capability, Endpoint, Inbox, Van};

pub use report::{Outcome, Report};
pub use runner::{run, run_as_rank, run_some};
pub use signals::Signals;

use node::{Failure, Node};

/// How the suite gets nodes of one kind of van. Implemented in each transport's `tests/conformance.rs`.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// How many nodes take part; at least 3.
    fn nodes(&self) -> usize {
        3
    }

    /// A node for `rank`, not yet linked to anybody: a fresh one for every call, or the one and only of this process.
    async fn node(&self, rank: usize) -> (Arc<dyn Van>, Inbox);

    /// A new node at `endpoint`, whose former owner is dead. `None` when the transport cannot reuse addresses; then
    /// the successor is an ordinary fresh node.
    async fn reincarnate(&self, rank: usize, endpoint: &Endpoint) -> Option<(Arc<dyn Van>, Inbox)> {
        let _ = (rank, endpoint);
        None
    }

    /// The endpoints of all ranks, when they are known beforehand. Needed by [`run_as_rank`] only.
    fn endpoints(&self) -> Vec<Endpoint> {
        Vec::new()
    }

    /// Where a stranger can open a plain TCP connection to the van at `endpoint`. Needed for a van with a public port.
    fn public_address(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        let _ = endpoint;
        None
    }

    /// Size of the part in the check of large parts. The default is the quick mode; 256 MiB is the full one.
    fn large_part_bytes(&self) -> u64 {
        16 * 1024 * 1024
    }

    /// How many small messages the check of small messages sends.
    fn small_messages(&self) -> u64 {
        100_000
    }

    /// Most bytes that may be under way to a receiver that does not read: the sender's queue, the medium and the
    /// receiver's inbox together.
    fn buffered_bytes_max(&self) -> u64 {
        128 * 1024 * 1024
    }

    /// How long one check may take.
    fn check_deadline(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// What a check needs of the nodes it runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Linked nodes, which it leaves linked.
    Linked,
    /// Linked nodes, which are closed afterwards; runs in both modes, as the last one when the van is the only one.
    Closing,
    /// Linked nodes of which it destroys some: not when the van is the only one.
    Mortal,
    /// Nodes without links: not when the van is the only one.
    Unlinked,
}

struct Check {
    name: &'static str,
    stage: Stage,
    /// Says which capability is missing, if one is.
    lacks: fn(&Capability) -> Option<&'static str>,
    run: for<'a> fn(&'a mut Node) -> BoxFuture<'a, Result<(), Failure>>,
}

macro_rules! check {
    ($module:ident :: $name:ident, $stage:ident, $lacks:expr) => {
        Check {
            name: stringify!($name),
            stage: Stage::$stage,
            lacks: $lacks,
            run: |node| Box::pin($module::$name(node)),
        }
    };
}

const CHECKS: [Check; 19] = [
    check!(delivery::v01_bytes_identical, Linked, |_| None),
    check!(delivery::v02_order_per_sender, Linked, |_| None),
    check!(pressure::v03_slow_receiver_delays_nobody_else, Linked, |_| None),
    check!(delivery::v04_large_part, Linked, |_| None),
    check!(delivery::v05_small_messages_without_loss, Linked, |_| None),
    check!(pressure::v06_back_pressure, Linked, |_| None),
    check!(delivery::v07_self_delivery, Linked, |_| None),
    check!(delivery::v08_many_tasks_one_peer, Linked, |_| None),
    check!(pressure::v09_cancelled_sends, Linked, |_| None),
    check!(misuse::v10_wrong_calls_answered_at_once, Linked, |_| None),
    check!(links::v11_connect_idempotent, Unlinked, dynamic_peers),
    check!(links::v12_close_flushes, Closing, |_| None),
    check!(links::v13_peer_down_once, Mortal, dynamic_peers_and_peer_down),
    check!(links::v14_new_incarnation, Mortal, dynamic_peers_and_peer_down),
    check!(misuse::v15_buffers_released, Linked, |_| None),
    check!(misuse::v16_strangers_harm_nobody, Linked, public_port),
    check!(pressure::v17_try_send_gives_back, Linked, |_| None),
    check!(links::v18_one_link_when_both_connect, Unlinked, dynamic_peers),
    check!(delivery::v19_everybody_sends_large_parts, Linked, |_| None),
];

fn dynamic_peers(capability: &Capability) -> Option<&'static str> {
    (!capability.dynamic_peers).then_some("dynamic_peers")
}

fn dynamic_peers_and_peer_down(capability: &Capability) -> Option<&'static str> {
    dynamic_peers(capability).or((!capability.reports_peer_down).then_some("reports_peer_down"))
}

fn public_port(capability: &Capability) -> Option<&'static str> {
    (!capability.public_port).then_some("public_port")
}
