//! The van conformance suite over MPI: this test starts itself again under `mpirun`, as three ranks.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test itself")]

mod mpirun;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kv_core::cluster::Role;
use kv_core::van::{Endpoint, Inbox, Van};
use kv_testkit::conformance::{Harness, Signals, run_as_rank};
use kv_transport_mpi::{MpiConfig, MpiVan};
use mpirun::Mpirun;

const RANKS: usize = 3;

/// Checks that run; the others need peers that come and go, a port, or nodes of their own.
const CHECKS: usize = 14;

type Node = (Arc<dyn Van>, Inbox);

struct Mpi {
    node: Mutex<Option<Node>>,
    large_part_bytes: u64,
}

#[async_trait]
impl Harness for Mpi {
    fn nodes(&self) -> usize {
        RANKS
    }

    async fn node(&self, _rank: usize) -> Node {
        self.node.lock().unwrap().take().unwrap()
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        (0..RANKS).map(MpiVan::endpoint_of).collect()
    }

    fn large_part_bytes(&self) -> u64 {
        self.large_part_bytes
    }
}

fn config() -> MpiConfig {
    MpiConfig { piece_bytes_max: 100_000_000, ..MpiConfig::new("conformance", Role::Worker) }
}

fn harness((van, inbox): (MpiVan, Inbox)) -> (Mpi, usize) {
    let rank = van.endpoint().0.strip_prefix("mpi://").unwrap().parse().unwrap();
    let node: Node = (Arc::new(van), inbox);
    // 256 MiB, and so more than one piece.
    (Mpi { node: Mutex::new(Some(node)), large_part_bytes: 256 << 20 }, rank)
}

async fn run(node: (MpiVan, Inbox), signals: PathBuf) {
    let (harness, rank) = harness(node);
    let report = run_as_rank(harness, rank, Signals::files(signals)).await;
    if rank == 0 {
        println!("{report}");
    }
    report.assert_ok(CHECKS);
}

/// The van as a task of its user's runtime, with one thread.
#[test]
fn conforms_on_one_thread() {
    let Some(signals) = Mpirun::new(RANKS).rerun("conforms_on_one_thread") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        run(MpiVan::bind(config()).await.unwrap(), signals).await;
        kv_transport_mpi::end().await;
    });
}

/// The van as a task that moves between threads.
#[test]
fn conforms_on_several_threads() {
    let Some(signals) = Mpirun::new(RANKS).rerun("conforms_on_several_threads") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        run(MpiVan::bind(config()).await.unwrap(), signals).await;
        kv_transport_mpi::end().await;
    });
}

/// The van on a thread of its own. The end of the process waits for the end of MPI.
#[test]
fn conforms_on_its_own_thread() {
    let Some(signals) = Mpirun::new(RANKS).rerun("conforms_on_its_own_thread") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        run(MpiVan::bind_apart(config()).await.unwrap(), signals).await;
    });
}
