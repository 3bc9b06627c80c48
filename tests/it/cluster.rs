//! Starts schedulers, servers and workers on threads of this process, each with its own sockets.

use std::sync::mpsc::sync_channel;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use kv::config::{Role, Settings};
use kv::{Error, KvStore, node};

pub(crate) struct Cluster {
    pub(crate) settings: Settings,
    scheduler: JoinHandle<Result<(), Error>>,
    servers: Vec<JoinHandle<Result<(), Error>>>,
}

/// What the tests of this binary agree on: short deadlines, small chunks, so that every value has several.
pub(crate) fn settings() -> Settings {
    Settings {
        timeout: Some(Duration::from_secs(20)),
        startup_timeout: Some(Duration::from_secs(20)),
        chunk_bytes: Some(64),
        ..Settings::default()
    }
}

impl Cluster {
    pub(crate) fn start(workers: u16, servers: u16) -> Self {
        Self::start_with(settings(), workers, servers)
    }

    pub(crate) fn start_with(settings: Settings, workers: u16, servers: u16) -> Self {
        let (address, listening) = sync_channel(1);
        let config = Settings {
            scheduler_host: Some("127.0.0.1".to_owned()),
            port: Some(0),
            num_workers: Some(workers),
            num_servers: Some(servers),
            ..settings.clone()
        };
        let scheduler = spawn(move || {
            let config = config.resolve(Role::Scheduler).unwrap();
            block_on(node::run_scheduler(&config, |endpoint| address.send(endpoint.clone()).unwrap()))
        });
        let endpoint = listening.recv().unwrap().0;
        let mut settings = settings;
        let (host, port) = endpoint.strip_prefix("tcp://").unwrap().rsplit_once(':').unwrap();
        settings.scheduler_host = Some(host.to_owned());
        settings.scheduler_port = Some(port.parse().unwrap());
        let server = |rank| {
            let settings = Settings { rank: Some(rank), ..settings.clone() };
            spawn(move || block_on(node::run_server(&settings.resolve(Role::Server)?, node::updaters(), |_| {})))
        };
        let servers = (0..servers).map(server).collect();
        Self { settings, scheduler, servers }
    }

    /// Runs one closure per worker, each on a thread of its own with its own store, and waits for all of them. The
    /// stores are closed afterwards.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        kind: &'static str,
        workers: u16,
        work: impl Fn(&KvStore) -> T + Send + Clone + 'static,
    ) -> Vec<T> {
        let start = |rank| {
            let (settings, work) = (Settings { rank: Some(rank), ..self.settings.clone() }, work.clone());
            spawn(move || {
                let store = KvStore::builder(kind).settings(settings).connect().unwrap();
                assert_eq!(store.rank(), usize::from(rank));
                let result = work(&store);
                store.close().unwrap();
                result
            })
        };
        let threads: Vec<_> = (0..workers).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    pub(crate) fn open(&self, kind: &str, rank: u16) -> Result<KvStore, Error> {
        KvStore::builder(kind).settings(Settings { rank: Some(rank), ..self.settings.clone() }).connect()
    }

    /// Waits until every node has ended by itself: the results of the scheduler and of the servers.
    pub(crate) fn results(self) -> (Result<(), Error>, Vec<Result<(), Error>>) {
        let servers = self.servers.into_iter().map(|server| server.join().unwrap());
        let servers = servers.collect();
        (self.scheduler.join().unwrap(), servers)
    }

    /// Waits until every node has ended by itself, well.
    pub(crate) fn end(self) {
        let (scheduler, servers) = self.results();
        scheduler.unwrap();
        servers.into_iter().for_each(|server| server.unwrap());
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
