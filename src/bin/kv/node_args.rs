//! The flags that every node takes; what they do not set comes from the environment, then from a file.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use kv::config::{NodeConfig, Role, Settings, process_env};
use kv::{Error, config};
use kv_core::cluster::WorkerLoss;
use tracing_subscriber::EnvFilter;

/// Flags of every node.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct NodeArgs {
    /// The scheduler's address: host:port, or ipc:///path with the transport zmq-ipc; none with mpi and memory [env:
    /// KV_SCHEDULER; DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) scheduler: Option<String>,
    /// Settings file (TOML) [env: KV_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the job; nodes of another job are refused [env: KV_JOB]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Address to listen on [env: KV_BIND]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<std::net::IpAddr>,
    /// Host by which the other nodes reach this one [env: KV_ADVERTISE, DMLC_NODE_HOST]
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Network interface whose address to use [env: KV_INTERFACE, DMLC_INTERFACE]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Port to listen on, 0 for any free one [env: KV_PORT]
    #[arg(long)]
    port: Option<u16>,
    /// The rank to ask for [env: KV_RANK, DMLC_RANK]
    #[arg(long)]
    rank: Option<u16>,
    /// Transport [env: KV_TRANSPORT]
    #[arg(long, value_name = "NAME")]
    transport: Option<String>,
    /// Listen with ZeroMQ on addresses that other hosts can reach, although a hostile peer can abort the process [env:
    /// KV_TRUST_NETWORK]
    #[arg(long)]
    trust_network: bool,
    /// Deadline of every wait, such as 60s [env: KV_TIMEOUT]
    #[arg(long, value_parser = duration)]
    timeout: Option<Duration>,
    /// How long the job may take to gather [env: KV_STARTUP_TIMEOUT]
    #[arg(long, value_parser = duration)]
    startup_timeout: Option<Duration>,
    /// What to log: error, warn, info, debug, trace, or a filter such as kv_core=debug [env: KV_LOG]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

/// Flags that matter at the scheduler only: it tells the others.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct JobArgs {
    /// Number of workers [env: KV_NUM_WORKERS, DMLC_NUM_WORKER]
    #[arg(short = 'n', long)]
    num_workers: Option<u16>,
    /// Number of servers [env: KV_NUM_SERVERS, DMLC_NUM_SERVER]
    #[arg(short = 's', long)]
    num_servers: Option<u16>,
    /// How often nodes say that they live [env: KV_HEARTBEAT_INTERVAL]
    #[arg(long, value_parser = duration)]
    heartbeat_interval: Option<Duration>,
    /// After how long a silent node counts as lost [env: KV_DEAD_AFTER]
    #[arg(long, value_parser = duration)]
    dead_after: Option<Duration>,
    /// Whether the others fail or continue when a worker is lost [env: KV_WORKER_LOSS]
    #[arg(long, value_parser = worker_loss)]
    worker_loss: Option<WorkerLoss>,
    /// Values are cut into chunks of this many bytes, such as 128KiB [env: KV_CHUNK_BYTES]
    #[arg(long, value_parser = byte_count)]
    chunk_bytes: Option<u64>,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    config::duration(text).ok_or("expected a duration such as 10s, 500ms or plain seconds")
}

fn byte_count(text: &str) -> Result<u64, &'static str> {
    config::byte_count(text).ok_or("expected a number of bytes such as 65536 or 128KiB")
}

fn worker_loss(text: &str) -> Result<WorkerLoss, &'static str> {
    config::worker_loss(text).ok_or("expected fail or continue")
}

impl NodeArgs {
    /// The configuration of a node in this role, and logging as it asks.
    pub(crate) fn resolve(self, job: JobArgs, role: Role) -> Result<NodeConfig, Error> {
        let mut flags = Settings {
            // The subcommand is the role, whatever the rank.
            by_rank: Some(false),
            num_workers: job.num_workers,
            num_servers: job.num_servers,
            heartbeat_interval: job.heartbeat_interval,
            dead_after: job.dead_after,
            worker_loss: job.worker_loss,
            chunk_bytes: job.chunk_bytes,
            job: self.job,
            bind: self.bind,
            advertise: self.advertise,
            interface: self.interface,
            port: self.port,
            rank: self.rank,
            transport: self.transport,
            trust_network: self.trust_network.then_some(true),
            timeout: self.timeout,
            startup_timeout: self.startup_timeout,
            log: self.log,
            ..Settings::default()
        };
        if let Some(text) = &self.scheduler
            && !flags.set_scheduler(text)
        {
            let found = text.escape_debug();
            return Err(Error::Config(format!("--scheduler: expected host:port or ipc:///path, found '{found}'")));
        }
        let config = Settings::load(flags, self.config.as_deref(), &process_env).resolve(role)?;
        start_logging(&config.log)?;
        Ok(config)
    }
}

/// Logs to the standard error.
pub(crate) fn start_logging(filter: &str) -> Result<(), Error> {
    let filter = EnvFilter::try_new(filter).map_err(|error| Error::Config(format!("log '{filter}': {error}")))?;
    // A second start in one process keeps the first; there is none.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    Ok(())
}
