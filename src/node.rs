//! The roles other than worker: what `kv scheduler` and `kv server` run, and what a program runs that is started in
//! every role by the same command.
//!
//! Over the transport `memory` a whole job fits into one process, which needs no ports and is what tests of programs
//! want. Its nodes find each other by the name of the job:
//!
//! ```
//! use std::thread::spawn;
//!
//! use kv::config::{Role, Settings};
//! use kv::{KvStore, node};
//!
//! let job = Settings {
//!     transport: Some("memory".to_owned()),
//!     job: Some("example".to_owned()),
//!     num_workers: Some(2),
//!     num_servers: Some(1),
//!     ..Settings::default()
//! };
//! let scheduler = job.clone().resolve(Role::Scheduler)?;
//! let scheduler = spawn(move || node::runtime()?.block_on(node::run_scheduler(&scheduler, |_| {})));
//! let server = job.clone().resolve(Role::Server)?;
//! let server = spawn(move || node::runtime()?.block_on(node::run_server(&server, node::updaters(), |_| {})));
//! let workers = [0, 1].map(|rank| {
//!     let settings = Settings { rank: Some(rank), ..job.clone() };
//!     spawn(move || {
//!         let store = KvStore::builder("dist_sync").settings(settings).connect()?;
//!         store.init("sum", &[0.0_f32; 3])?;
//!         let sum = store.push_pull("sum", &[f32::from(rank) + 1.0; 3])?.wait()?;
//!         assert_eq!(sum.as_slice::<f32>()?, [3.0; 3]);
//!         store.close()
//!     })
//! });
//! for node in workers.into_iter().chain([scheduler, server]) {
//!     node.join().expect("no thread panics")?;
//! }
//! # Ok::<(), kv::Error>(())
//! ```

use std::net::UdpSocket;
use std::sync::Arc;

use kv_core::cluster::{NodeId, Role};
use kv_core::driver;
use kv_core::machine::{Joined, MemberConfig, SchedulerConfig, ServerConfig};
use kv_core::updater::UpdaterRegistry;
use kv_core::wire::StatusReport;
use kv_core::{Endpoint, Error, Inbox, Van};
use std::time::Duration;

use crate::config::{NodeConfig, SchedulerAddress, Settings, process_env};
use crate::private_folder::PrivateFolder;
use crate::spin::spinning;
use crate::transport::{self, Addressing, Bound};

/// How long a scheduler stays after the end where answers can be lost.
const LINGER: Duration = Duration::from_secs(5);

/// Runs a scheduler until its job is over. `listening` hears its address as soon as it takes connections.
///
/// # Errors
/// The port or the name is in use, nodes are missing at the start-up deadline, a node was lost.
///
/// # Cancel safety
/// Dropping the future is like killing the scheduler.
pub async fn run_scheduler(config: &NodeConfig, listening: impl FnOnce(&Endpoint)) -> Result<(), Error> {
    // The folder lasts as long as the scheduler does.
    let (config, _folder) = with_socket(config)?;
    // The name by which the others are told to find it, when it listens on every address.
    let known_as = config.scheduler.as_ref().and_then(SchedulerAddress::host_port).map(|address| address.host.clone());
    let known_as = known_as.or_else(|| config.listen.ip().is_unspecified().then(crate::config::own_address).flatten());
    let Bound { van, inbox, sizes } = transport::bind(&config, new_node()?, known_as).await?;
    let missing = |what: &str, names: &str| {
        Error::Config(format!("{names}: expected the number of {what}, which this scheduler waits for, found nothing"))
    };
    let workers = config.num_workers.or(sizes.as_ref().map(|sizes| sizes.workers));
    let servers = config.num_servers.or(sizes.as_ref().map(|sizes| sizes.servers));
    let scheduler = SchedulerConfig {
        workers: workers.ok_or_else(|| missing("workers", "num_workers (--num-workers, KV_NUM_WORKERS)"))?,
        servers: servers.ok_or_else(|| missing("servers", "num_servers (--num-servers, KV_NUM_SERVERS)"))?,
        job: config.shared.clone(),
        start_timeout: config.startup_timeout,
        linger: if van.capability().reliable { Duration::ZERO } else { LINGER },
    };
    listening(van.endpoint());
    driver::run_scheduler(scheduler, van, inbox).await?;
    transport::end().await;
    Ok(())
}

/// The configuration of a scheduler, whose socket lies in a folder made for it when it was told no path.
fn with_socket(config: &NodeConfig) -> Result<(NodeConfig, Option<PrivateFolder>), Error> {
    let mut config = config.clone();
    if config.scheduler.is_some() || transport::addressing(config.transport) != Addressing::Socket {
        return Ok((config, None));
    }
    let folder = PrivateFolder::new()?;
    config.scheduler = Some(crate::config::scheduler_socket_in(folder.path()?).map_err(|problem| {
        Error::Config(format!("TMPDIR: {problem}; choose a shorter one, or a path with --scheduler ipc:///path"))
    })?);
    Ok((config, Some(folder)))
}

/// Runs a server until its job is over. `joined` hears its place in the job.
///
/// # Errors
/// The scheduler is unreachable or refuses, nodes are missing at the start-up deadline, the job failed.
///
/// # Cancel safety
/// Dropping the future is like killing the server.
pub async fn run_server(
    config: &NodeConfig,
    updaters: UpdaterRegistry,
    joined: impl FnMut(Joined) + Send,
) -> Result<(), Error> {
    let (member, van, inbox) = join(config, Role::Server).await?;
    let server = ServerConfig { updaters: Arc::new(updaters), keep_replies: !van.capability().reliable };
    spinning(driver::run_server(member, server, van, inbox, joined), config.spin).await?;
    transport::end().await;
    Ok(())
}

/// Asks the scheduler of a running job who is there.
///
/// # Errors
/// It cannot be reached or does not answer within the configured deadline.
///
/// # Cancel safety
/// Dropping the future gives up asking.
pub async fn status(config: &NodeConfig) -> Result<StatusReport, Error> {
    let scheduler = scheduler_of(config)?;
    let Bound { van, inbox, .. } = transport::bind(config, new_node()?, local_host(config)).await?;
    driver::ask_status(van, inbox, &scheduler, config.timeout).await
}

/// The updaters of this build: those of `kv-core` and all of `kv-optim`. A server of your own adds its own.
#[must_use]
pub fn updaters() -> UpdaterRegistry {
    let mut registry = UpdaterRegistry::default();
    kv_optim::register(&mut registry);
    registry
}

/// Runs the scheduler or server when the environment asks for that role (`DMLC_ROLE`, `KV_ROLE`, or a rank where roles
/// go [by rank](crate::config)), and returns whether it did. The first line of a program that launchers start once for
/// every role, as they do with MXNet scripts:
///
/// ```no_run
/// # fn main() -> Result<(), kv::Error> {
/// if kv::node::serve_if_asked()? {
///     return Ok(());
/// }
/// let store = kv::KvStore::create("dist_sync")?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of the role.
pub fn serve_if_asked() -> Result<bool, Error> {
    serve_if_asked_with(Settings::default())
}

/// As [`serve_if_asked`], with settings of the program's own, which win over environment and file.
///
/// # Errors
/// Those of the role.
pub fn serve_if_asked_with(settings: Settings) -> Result<bool, Error> {
    let settings = Settings::load(settings, None, &process_env);
    match settings.role {
        Some(Role::Scheduler) => {
            let config = settings.resolve(Role::Scheduler)?;
            runtime()?.block_on(run_scheduler(&config, |endpoint| tracing::info!("listening on {endpoint}")))?;
            Ok(true)
        }
        Some(Role::Server) => {
            let config = settings.resolve(Role::Server)?;
            runtime()?.block_on(run_server(&config, updaters(), |_| {}))?;
            Ok(true)
        }
        Some(Role::Worker | Role::Observer) | None => Ok(false),
    }
}

/// A runtime for a node: one thread that does everything, because a node hands nothing over between threads.
///
/// # Errors
/// [`Error::Config`] when the operating system does not give what a runtime needs.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error::Config(format!("cannot start a runtime: {error}")))
}

/// Binds a van and says how to join with it.
pub(crate) async fn join(config: &NodeConfig, role: Role) -> Result<(MemberConfig, Arc<dyn Van>, Inbox), Error> {
    let scheduler = scheduler_of(config)?;
    let Bound { van, inbox, .. } = transport::bind(config, new_node()?, local_host(config)).await?;
    let member = MemberConfig {
        node: van.node(),
        role,
        rank: config.rank,
        endpoint: van.endpoint().clone(),
        scheduler,
        start_timeout: config.startup_timeout,
    };
    Ok((member, van, inbox))
}

fn scheduler_of(config: &NodeConfig) -> Result<Endpoint, Error> {
    let missing = || Error::Config("the address of the scheduler is not set".to_owned());
    config.scheduler.as_ref().map(SchedulerAddress::endpoint).ok_or_else(missing)
}

fn new_node() -> Result<NodeId, Error> {
    NodeId::random().map_err(|error| Error::Config(format!("no random identity to be had: {error}")))
}

/// The address from which this machine reaches the scheduler: where the others reach this node, unless told
/// otherwise. Nothing is sent.
fn local_host(config: &NodeConfig) -> Option<String> {
    let scheduler = config.scheduler.as_ref()?.host_port()?;
    if config.advertise.is_some() {
        return config.advertise.clone();
    }
    if !config.listen.ip().is_unspecified() {
        return None;
    }
    let any = if config.listen.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((scheduler.host.as_str(), scheduler.port)).ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}
