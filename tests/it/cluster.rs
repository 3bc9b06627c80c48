//! Starts schedulers, servers and workers on threads of this process, each with its own sockets.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kv::config::{Role, Settings};
use kv::{Error, KvStore, node};
use kv_core::wire::StatusReport;
use tokio::sync::oneshot;

/// No test waits longer for anything: what has not ended by then hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Held by tests that use very much memory, and by tests that measure how much is used.
static MEMORY: Mutex<()> = Mutex::new(());

pub(crate) struct Cluster {
    pub(crate) settings: Settings,
    scheduler: Node,
    servers: Vec<Node>,
}

/// A scheduler or a server.
struct Node {
    kill: oneshot::Sender<()>,
    task: Task<Result<(), Error>>,
}

/// A thread whose end is waited for with a deadline.
pub(crate) struct Task<T> {
    ended: Receiver<T>,
    thread: JoinHandle<()>,
}

/// Starts `work` on a thread of its own.
pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    let (end, ended) = sync_channel(1);
    let thread = std::thread::spawn(move || {
        let result = work();
        // Nobody listens any more when the test has failed.
        let _ = end.send(result);
    });
    Task { ended, thread }
}

impl<T> Task<T> {
    /// Its result; panics when it has panicked, or does not end.
    pub(crate) fn join(self) -> T {
        match self.ended.recv_timeout(LIMIT) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => panic!("still not at its end after {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => match self.thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("it has sent its result"),
            },
        }
    }

    /// Waits for its end; whether it has panicked.
    pub(crate) fn has_panicked(self) -> bool {
        match self.ended.recv_timeout(LIMIT) {
            Ok(_) => false,
            Err(RecvTimeoutError::Timeout) => panic!("still not at its end after {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => self.thread.join().is_err(),
        }
    }
}

pub(crate) fn reserve_memory() -> MutexGuard<'static, ()> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The same, with a deadline of this many seconds for every wait.
pub(crate) fn settings_with_timeout(seconds: u64) -> Settings {
    Settings { timeout: Some(Duration::from_secs(seconds)), ..settings() }
}

impl Cluster {
    pub(crate) fn start(workers: u16, servers: u16) -> Self {
        Self::start_with(settings(), workers, servers)
    }

    pub(crate) fn start_with(settings: Settings, workers: u16, servers: u16) -> Self {
        let mut cluster = Self::gather(settings, workers, servers);
        (0..servers).for_each(|rank| cluster.add_server(rank));
        cluster
    }

    /// Only a scheduler, that waits for so many.
    pub(crate) fn gather(settings: Settings, workers: u16, servers: u16) -> Self {
        let (address, listening) = sync_channel(1);
        let config = Settings {
            scheduler_host: Some("127.0.0.1".to_owned()),
            port: Some(0),
            num_workers: Some(workers),
            num_servers: Some(servers),
            ..settings.clone()
        };
        let scheduler = Node::start(async move {
            let config = config.resolve(Role::Scheduler)?;
            node::run_scheduler(&config, |endpoint| address.send(endpoint.clone()).unwrap()).await
        });
        let endpoint = listening.recv_timeout(LIMIT).unwrap().0;
        let mut settings = settings;
        let (host, port) = endpoint.strip_prefix("tcp://").unwrap().rsplit_once(':').unwrap();
        settings.scheduler_host = Some(host.to_owned());
        settings.scheduler_port = Some(port.parse().unwrap());
        Self { settings, scheduler, servers: Vec::new() }
    }

    pub(crate) fn add_server(&mut self, rank: u16) {
        let settings = Settings { rank: Some(rank), ..self.settings.clone() };
        self.servers.push(Node::start(async move {
            node::run_server(&settings.resolve(Role::Server)?, node::updaters(), |_| {}).await
        }));
    }

    /// Runs one closure per worker, each on a thread of its own with its own store, and waits for all of them. The
    /// stores are closed afterwards.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        kind: &'static str,
        workers: u16,
        work: impl Fn(&KvStore) -> T + Send + Clone + 'static,
    ) -> Vec<T> {
        let worker = |rank| {
            let work = work.clone();
            self.worker(kind, rank, move |store| {
                let result = work(&store);
                store.close().unwrap();
                result
            })
        };
        let tasks: Vec<_> = (0..workers).map(worker).collect();
        tasks.into_iter().map(Task::join).collect()
    }

    /// Starts one worker on a thread of its own.
    pub(crate) fn worker<T: Send + 'static>(
        &self,
        kind: &'static str,
        rank: u16,
        work: impl FnOnce(KvStore) -> T + Send + 'static,
    ) -> Task<T> {
        let settings = Settings { rank: Some(rank), ..self.settings.clone() };
        start(move || {
            let store = KvStore::builder(kind).settings(settings).connect().unwrap();
            assert_eq!(store.rank(), usize::from(rank));
            work(store)
        })
    }

    pub(crate) fn open(&self, kind: &str, rank: u16) -> Result<KvStore, Error> {
        KvStore::builder(kind).settings(Settings { rank: Some(rank), ..self.settings.clone() }).connect()
    }

    pub(crate) fn status(&self) -> StatusReport {
        let config = self.settings.clone().resolve(Role::Observer).unwrap();
        block_on(node::status(&config)).unwrap()
    }

    pub(crate) fn kill_scheduler(&mut self) {
        self.scheduler.kill();
    }

    /// Servers are numbered as they were started.
    pub(crate) fn kill_server(&mut self, rank: usize) {
        self.servers[rank].kill();
    }

    /// Waits until every node has ended by itself: the results of the scheduler and of the servers. Those that were
    /// killed are [`Error::Closed`].
    pub(crate) fn results(self) -> (Result<(), Error>, Vec<Result<(), Error>>) {
        let servers = self.servers.into_iter().map(|server| server.task.join()).collect();
        (self.scheduler.task.join(), servers)
    }

    /// Waits until every node has ended by itself, well.
    pub(crate) fn end(self) {
        let (scheduler, servers) = self.results();
        scheduler.unwrap();
        servers.into_iter().for_each(|server| server.unwrap());
    }
}

impl Node {
    fn start(node: impl Future<Output = Result<(), Error>> + Send + 'static) -> Self {
        let (kill, killed) = oneshot::channel();
        let task = start(move || {
            block_on(async {
                tokio::select! {
                    result = node => result,
                    Ok(()) = killed => Err(Error::Closed),
                }
            })
        });
        Self { kill, task }
    }

    /// As `kill -9` would: its sockets close, nobody hears a word.
    fn kill(&mut self) {
        let kill = std::mem::replace(&mut self.kill, oneshot::channel().0);
        kill.send(()).unwrap();
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
