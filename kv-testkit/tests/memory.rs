//! The suite against the reference van, and against vans that break its promises.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test itself")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kv_core::cluster::NodeId;
use kv_core::van::{Endpoint, Inbox, InboxLimits, MemoryHub, Van};
use kv_testkit::conformance::{Harness, Outcome, Report, Signals, run, run_as_rank, run_some};
use kv_testkit::faulty::{Faults, FaultyVan};

/// Checks that need no public port.
const CHECKS: usize = 18;

/// Checks that also run when a process has one van for the whole run.
const CHECKS_OF_ONE_VAN: usize = 14;

struct Memory {
    hub: MemoryHub,
    faults: Option<Faults>,
}

impl Memory {
    fn new(faults: Option<Faults>) -> Self {
        Self { hub: MemoryHub::new(), faults }
    }

    fn bind(&self, node: NodeId) -> (Arc<dyn Van>, Inbox) {
        let (van, inbox) = self.hub.bind(node, InboxLimits::default()).unwrap();
        let van: Arc<dyn Van> = Arc::new(van);
        match self.faults {
            Some(faults) => (Arc::new(FaultyVan::new(van, faults)), inbox),
            None => (van, inbox),
        }
    }
}

#[async_trait]
impl Harness for Memory {
    async fn node(&self, _rank: usize) -> (Arc<dyn Van>, Inbox) {
        self.bind(NodeId::random().unwrap())
    }

    async fn reincarnate(&self, _rank: usize, endpoint: &Endpoint) -> Option<(Arc<dyn Van>, Inbox)> {
        let id = u64::from_str_radix(endpoint.0.strip_prefix("mem://")?, 16).ok()?;
        Some(self.bind(NodeId(id)))
    }

    fn check_deadline(&self) -> Duration {
        // A van that breaks its promises makes some checks hang; that need not take long.
        Duration::from_secs(if self.faults.is_some_and(|faults| faults != Faults::none(faults.seed)) { 5 } else { 60 })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_van_conforms() {
    let report = run(Memory::new(None)).await;
    report.assert_ok(CHECKS);
    assert_eq!(
        report.outcome("v16_strangers_harm_nobody"),
        Some(&Outcome::Skipped("needs the capability public_port".to_owned()))
    );
}

#[tokio::test]
async fn memory_van_conforms_on_one_thread() {
    run(Memory::new(None)).await.assert_ok(CHECKS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faulty_van_without_faults_conforms() {
    run(Memory::new(Some(Faults::none(1)))).await.assert_ok(CHECKS);
}

async fn with_faults(change: impl FnOnce(&mut Faults)) -> Report {
    let mut faults = Faults::none(7);
    change(&mut faults);
    run_some(Memory::new(Some(faults)), |name| name.starts_with("v02") || name.starts_with("v05")).await
}

#[tokio::test]
async fn loss_is_noticed() {
    assert_eq!(with_faults(|faults| faults.drop = 0.01).await.failed(), 2);
}

#[tokio::test]
async fn duplication_is_noticed() {
    assert_eq!(with_faults(|faults| faults.duplicate = 0.01).await.failed(), 2);
}

#[tokio::test]
async fn reordering_is_noticed() {
    assert_eq!(with_faults(|faults| faults.reorder = 0.01).await.failed(), 2);
}

#[tokio::test]
async fn delay_that_reorders_is_noticed() {
    assert_eq!(with_faults(|faults| faults.delay = 0.01).await.failed(), 2);
}

#[tokio::test]
async fn same_seed_same_faults() {
    let mut counts = Vec::new();
    for _ in 0..2 {
        let hub = MemoryHub::new();
        let (van, mut inbox) = hub.bind(NodeId(1), InboxLimits::default()).unwrap();
        let faults = Faults { drop: 0.2, duplicate: 0.2, reorder: 0.2, ..Faults::none(3) };
        let van = FaultyVan::new(Arc::new(van), faults);
        for sequence in 0..500 {
            let message = kv_core::wire::Message::new(kv_core::wire::Kind::Push);
            van.send(NodeId(1), message.with_header(|header| header.sequence = sequence)).await.unwrap();
        }
        van.close().await.unwrap();
        drop(van);
        let mut events = Vec::new();
        while inbox.recv_many(&mut events, 100).await > 0 {}
        counts.push(format!("{events:?}"));
    }
    assert_eq!(counts[0], counts[1]);
}

/// A rank whose process has one van, as under MPI; the "processes" are tasks.
struct OneVan {
    van: std::sync::Mutex<Option<(Arc<dyn Van>, Inbox)>>,
    endpoints: Vec<Endpoint>,
    deadline: Duration,
}

#[async_trait]
impl Harness for OneVan {
    fn check_deadline(&self) -> Duration {
        self.deadline
    }

    async fn node(&self, _rank: usize) -> (Arc<dyn Van>, Inbox) {
        self.van.lock().unwrap().take().expect("asked for once")
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        self.endpoints.clone()
    }
}

async fn as_ranks(faults_of_rank_1: Faults, deadline: Duration) -> Vec<Report> {
    let directory = tempfile::tempdir().unwrap();
    let hub = MemoryHub::new();
    let endpoints: Vec<_> = (1..=3).map(|id| Endpoint(format!("mem://{}", NodeId(id)))).collect();
    let harnesses: Vec<_> = (1..=3)
        .map(|id| {
            let (van, inbox) = hub.bind(NodeId(id), InboxLimits::default()).unwrap();
            let van: Arc<dyn Van> = match id {
                2 => Arc::new(FaultyVan::new(Arc::new(van), faults_of_rank_1)),
                _ => Arc::new(van),
            };
            OneVan { van: Some((van, inbox)).into(), endpoints: endpoints.clone(), deadline }
        })
        .collect();
    let mut ranks = tokio::task::JoinSet::new();
    for (rank, harness) in harnesses.into_iter().enumerate() {
        let signals = Signals::files(directory.path().to_owned());
        ranks.spawn(async move { run_as_rank(harness, rank, signals).await });
    }
    ranks.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_van_per_rank_runs_what_leaves_it_usable() {
    for report in as_ranks(Faults::none(1), Duration::from_secs(60)).await {
        report.assert_ok(CHECKS_OF_ONE_VAN);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_of_one_rank_is_everybodys() {
    for report in as_ranks(Faults { duplicate: 0.5, ..Faults::none(1) }, Duration::from_secs(3)).await {
        assert!(report.failed() > 0, "{report}");
    }
}
