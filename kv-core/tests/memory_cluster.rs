//! Whole clusters in one process: real drivers over memory vans.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use kv_core::cluster::{JobConfig, NodeId, Rank, Role, WorkerLoss};
use kv_core::driver::{WindowLimits, WorkerHandle, WorkerSettings, run_scheduler, run_server, start_worker};
use kv_core::machine::{Joined, MemberConfig, Op, Outcome, SchedulerConfig, ServerConfig, Value};
use kv_core::updater::UpdaterRegistry;
use kv_core::van::{InboxLimits, MemoryHub};
use kv_core::{AsTensor, Consistency, Element, Endpoint, Error, Key, Tensor, Van};
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_secs(10);

struct Cluster {
    hub: MemoryHub,
    scheduler: Endpoint,
    nodes: Vec<JoinHandle<Result<(), Error>>>,
    next_node: u64,
}

impl Cluster {
    fn start(workers: u16, servers: u16, job: JobConfig) -> Self {
        let hub = MemoryHub::new();
        let (van, inbox) = hub.bind(NodeId(1), InboxLimits::default()).unwrap();
        let scheduler = van.endpoint().clone();
        let config = SchedulerConfig { workers, servers, job, start_timeout: TIMEOUT, linger: Duration::ZERO };
        let nodes = vec![tokio::spawn(run_scheduler(config, Arc::new(van), inbox))];
        let mut cluster = Self { hub, scheduler, nodes, next_node: 2 };
        for rank in 0..servers {
            let (member, van, inbox) = cluster.node(Role::Server, rank);
            let config = ServerConfig { updaters: Arc::new(UpdaterRegistry::default()), keep_replies: false };
            cluster.nodes.push(tokio::spawn(run_server(member, config, van, inbox, |_| {})));
        }
        cluster
    }

    fn node(&mut self, role: Role, rank: u16) -> (MemberConfig, Arc<dyn Van>, kv_core::Inbox) {
        let (van, inbox) = self.hub.bind(NodeId(self.next_node), InboxLimits::default()).unwrap();
        self.next_node += 1;
        let member = MemberConfig {
            node: van.node(),
            role,
            rank: Some(Rank(rank)),
            endpoint: van.endpoint().clone(),
            scheduler: self.scheduler.clone(),
            start_timeout: TIMEOUT,
        };
        (member, Arc::new(van), inbox)
    }

    async fn workers(&mut self, count: u16, consistency: Consistency) -> Vec<Worker> {
        let mut starting = Vec::new();
        for rank in 0..count {
            let (member, van, inbox) = self.node(Role::Worker, rank);
            let settings = WorkerSettings { member, consistency, timeout: TIMEOUT, window: WindowLimits::default() };
            let (handle, place, driver) = start_worker(settings, van, inbox);
            starting.push((handle, place, tokio::spawn(driver)));
        }
        let mut workers = Vec::new();
        for (handle, place, driver) in starting {
            workers.push(Worker { handle, place: place.await.unwrap().unwrap(), driver });
        }
        workers
    }

    async fn end(self) {
        for node in self.nodes {
            node.await.unwrap().unwrap();
        }
    }
}

struct Worker {
    handle: WorkerHandle,
    place: Joined,
    driver: JoinHandle<Result<(), Error>>,
}

impl Worker {
    async fn call(&self, op: Op) -> Result<Outcome, Error> {
        self.handle.submit(op, 0).await?.await
    }

    async fn init<T: Element>(&self, key: &str, values: &[T]) -> Result<(), Error> {
        let tensor = Tensor::new(&[values.len()], values).unwrap();
        self.call(Op::Init(vec![(Key::from(key), tensor)])).await.map(drop)
    }

    async fn push<T: Element>(&self, key: &str, values: &[T]) -> Result<(), Error> {
        self.call(Op::Push(vec![(Key::from(key), Value::from(values.as_tensor()))])).await.map(drop)
    }

    async fn pull<T: Element>(&self, key: &str) -> Result<Vec<T>, Error> {
        match self.call(Op::Pull(vec![Key::from(key)])).await? {
            Outcome::Values(values) => values[0].to_vec(),
            Outcome::Done => panic!("a pull gives values"),
        }
    }

    async fn leave(self) {
        self.call(Op::Leave).await.unwrap();
        self.driver.await.unwrap().unwrap();
    }
}

const SYNC: Consistency = Consistency::Sync { deterministic: false };

#[tokio::test]
async fn consecutive_pushes_are_rounds_not_requests() {
    for servers in [1, 2, 3] {
        let mut cluster = Cluster::start(2, servers, JobConfig { chunk_bytes: 64, ..JobConfig::default() });
        let workers = cluster.workers(2, SYNC).await;
        let (w0, w1) = (&workers[0], &workers[1]);
        assert_eq!((w0.place.rank, w1.place.rank, w0.place.workers), (Rank(0), Rank(1), 2));
        tokio::try_join!(w0.init("w", &[0_f32; 100]), w1.init("w", &[0_f32; 100])).unwrap();
        w0.push("w", &[1_f32; 100]).await.unwrap();
        w0.push("w", &[10_f32; 100]).await.unwrap();
        w1.push("w", &[2_f32; 100]).await.unwrap();
        w1.push("w", &[20_f32; 100]).await.unwrap();
        let (a, b) = tokio::try_join!(w0.pull::<f32>("w"), w1.pull::<f32>("w")).unwrap();
        assert_eq!(a, [30_f32; 100]);
        assert_eq!(b, a);
        for worker in workers {
            worker.leave().await;
        }
        cluster.end().await;
    }
}

#[tokio::test]
async fn errors_are_typed_and_the_server_goes_on() {
    let mut cluster = Cluster::start(1, 2, JobConfig { chunk_bytes: 64, ..JobConfig::default() });
    let mut workers = cluster.workers(1, Consistency::Async).await;
    let worker = workers.remove(0);
    worker.init("w", &[1_f32; 50]).await.unwrap();
    assert!(matches!(worker.pull::<f32>("x").await, Err(Error::NotInitialised { .. })));
    assert!(matches!(worker.push("x", &[1_f32]).await, Err(Error::NotInitialised { .. })));
    assert!(matches!(worker.init("w", &[1_f32; 50]).await, Err(Error::AlreadyInitialised { .. })));
    assert!(matches!(worker.push("w", &[1_f64; 50]).await, Err(Error::DTypeMismatch { .. })));
    assert!(matches!(worker.push("w", &[1_f32; 49]).await, Err(Error::ShapeMismatch { .. })));
    let clash = worker.call(Op::Pull(vec![Key::Int(Key::from("w").id().0)])).await;
    assert!(matches!(clash, Err(Error::KeyClash { .. })));
    let twice = vec![Key::Int(5), Key::Int(6), Key::Int(5)];
    let twice = twice.into_iter().map(|key| (key, Tensor::new(&[1], &[0_f32]).unwrap())).collect();
    assert!(matches!(worker.call(Op::Init(twice)).await, Err(Error::AlreadyInitialised { key: Key::Int(5) })));
    assert!(matches!(worker.call(Op::Pull(vec![Key::Int(5)])).await, Err(Error::NotInitialised { .. })));
    assert!(matches!(worker.call(Op::Pull(Vec::new())).await, Ok(Outcome::Done)));
    worker.push("w", &[7_f32; 50]).await.unwrap();
    assert_eq!(worker.pull::<f32>("w").await.unwrap(), [7_f32; 50]);
    worker.leave().await;
    cluster.end().await;
}

#[tokio::test]
async fn a_lost_worker_is_named_or_gone_on_without() {
    for worker_loss in [WorkerLoss::Fail, WorkerLoss::Continue] {
        let mut cluster = Cluster::start(2, 2, JobConfig { worker_loss, ..JobConfig::default() });
        let mut workers = cluster.workers(2, SYNC).await;
        let (w1, w0) = (workers.pop().unwrap(), workers.pop().unwrap());
        tokio::try_join!(w0.init("w", &[0_f32; 8]), w1.init("w", &[0_f32; 8])).unwrap();
        w0.push("w", &[1_f32; 8]).await.unwrap();
        let pull = tokio::spawn({
            let handle = w0.handle.clone();
            async move { handle.submit(Op::Pull(vec![Key::from("w")]), 0).await.unwrap().await }
        });
        let barrier = w0.handle.barrier().await.unwrap();
        w1.driver.abort();
        let (pull, barrier) = (pull.await.unwrap(), barrier.await);
        match worker_loss {
            WorkerLoss::Fail => {
                let Err(Error::WorkerLost { name, .. }) = pull else { panic!("{pull:?}") };
                assert_eq!((name.role, name.rank), (Role::Worker, Rank(1)));
                assert!(matches!(barrier, Err(Error::WorkerLost { .. })), "{barrier:?}");
            }
            WorkerLoss::Continue => {
                let Ok(Outcome::Values(values)) = pull else { panic!("{pull:?}") };
                assert_eq!(values[0].as_slice::<f32>().unwrap(), [1_f32; 8]);
                barrier.unwrap();
            }
        }
        w0.leave().await;
        let results = futures_util::future::join_all(cluster.nodes).await;
        let failed = results.into_iter().any(|node| node.unwrap().is_err());
        assert_eq!(failed, worker_loss == WorkerLoss::Fail);
    }
}
