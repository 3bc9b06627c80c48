//! Everything a scheduler, a server or a worker needs to know to join a job.
//!
//! Settings come from four sources. An earlier one wins, field by field:
//!
//! 1. *flags*: what the caller has set in a [`Settings`];
//! 2. *environment*: `KV_*`, and then the variables of ps-lite and MXNet, so that their launchers work unchanged;
//! 3. *file*: TOML, named by `--config` or `KV_CONFIG`;
//! 4. *defaults*.
//!
//! [`Settings::load`] merges the first three, and finds the place of a process by its rank when `mpirun` or `srun` has
//! started it and that is asked for; [`Settings::resolve`] adds the defaults, checks, and reports all that is wrong at
//! once.
//!
//! | file | own variable | ps-lite's variable | default |
//! |---|---|---|---|
//! | `role` | `KV_ROLE` | `DMLC_ROLE` | by program |
//! | `by_rank` | `KV_BY_RANK` | | false, but over MPI |
//! | `scheduler` | `KV_SCHEDULER` | `DMLC_PS_ROOT_URI`, `DMLC_PS_ROOT_PORT` | required |
//! | `num_workers`, `num_servers` | `KV_NUM_WORKERS`, `KV_NUM_SERVERS` | `DMLC_NUM_WORKER`, `DMLC_NUM_SERVER` | required at the scheduler |
//! | `job` | `KV_JOB` | | `kv` |
//! | `bind` | `KV_BIND` | | the advertised address, the interface's, or all |
//! | `advertise` | `KV_ADVERTISE` | `DMLC_NODE_HOST` | the address that reaches the scheduler |
//! | `interface` | `KV_INTERFACE` | `DMLC_INTERFACE` | |
//! | `port` | `KV_PORT` | | any free one; the scheduler's own address |
//! | `node_port` | `KV_NODE_PORT` | `DMLC_PORT`, `PORT` | as `port`, not for the scheduler |
//! | `rank` | `KV_RANK` | `DMLC_RANK` | given by the scheduler |
//! | `transport` | `KV_TRANSPORT` | | `tcp` |
//! | `trust_network` | `KV_TRUST_NETWORK` | | false |
//! | `timeout` | `KV_TIMEOUT` | | 60s |
//! | `startup_timeout` | `KV_STARTUP_TIMEOUT` | | 60s |
//! | `spin` | `KV_SPIN` | | 0: sleep at once |
//! | `heartbeat_interval` | `KV_HEARTBEAT_INTERVAL` | `PS_HEARTBEAT_INTERVAL` | 1s |
//! | `dead_after` | `KV_DEAD_AFTER` | `PS_HEARTBEAT_TIMEOUT` | 10s |
//! | `worker_loss` | `KV_WORKER_LOSS` | | `fail` |
//! | `chunk_bytes` | `KV_CHUNK_BYTES` | | 128KiB |
//! | `deterministic` | `KV_DETERMINISTIC` | | false |
//! | `window_messages`, `window_bytes` | `KV_WINDOW_MESSAGES`, `KV_WINDOW_BYTES` | | 1024, 256MiB |
//! | `kubernetes` | `KV_KUBERNETES` | `DMLC_USE_KUBERNETES` | false |
//! | `log` | `KV_LOG` | `PS_VERBOSE` (1 info, 2 debug) | warn |
//!
//! ```
//! use kv::config::{Role, Settings};
//!
//! let flags = Settings { port: Some(9100), ..Settings::default() };
//! let environment = |name: &str| (name == "DMLC_PS_ROOT_URI").then(|| "10.0.0.7".to_owned());
//! let file = Settings::from_toml("scheduler = ':9091'\ntimeout = '5s'", "kv.toml");
//! let config = flags.or(Settings::from_env(&environment)).or(file).resolve(Role::Server)?;
//! assert_eq!(config.listen.port(), 9100);
//! assert_eq!(config.scheduler.unwrap().to_string(), "tcp://10.0.0.7:9091");
//! # Ok::<(), kv::config::Error>(())
//! ```

mod address;
mod by_rank;
mod fields;
mod interface;
mod parse;
mod resolve;
mod scheduler;
mod settings;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use kv_core::Endpoint;
use kv_core::cluster::{JobConfig, NodeId, Rank};
use kv_core::driver::WindowLimits;

use crate::transport::{self, Addressing};

pub use address::SchedulerAddress;
pub(crate) use address::scheduler_socket_in;
pub(crate) use interface::own_address;
pub use kv_core::Error;
pub use kv_core::cluster::{Role, WorkerLoss};
pub use parse::{HostPort, byte_count, duration, host, host_port, role, worker_loss};
pub use settings::{Settings, process_env};

/// What a node knows when it starts. Made by [`Settings::resolve`], which has checked it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NodeConfig {
    /// What this node does.
    pub role: Role,
    /// Where the scheduler is. Always there, except at the scheduler itself when it takes any free port, or makes a
    /// folder for its socket.
    pub scheduler: Option<SchedulerAddress>,
    /// Number of workers the job starts with. Always there at the scheduler, unless its transport knows it.
    pub num_workers: Option<u16>,
    /// Number of servers. Always there at the scheduler, unless its transport knows it.
    pub num_servers: Option<u16>,
    /// Name of the job; nodes of another job are refused.
    pub job: String,
    /// Address and port to listen on; port 0 takes a free one. For transports with hosts and ports only.
    pub listen: SocketAddr,
    /// Host that the other nodes reach this one by; when `None`, the address this node reaches the scheduler from.
    pub advertise: Option<String>,
    /// The rank this node asks for.
    pub rank: Option<Rank>,
    /// Name of the transport; it is compiled in.
    pub transport: &'static str,
    /// Whether ZeroMQ may listen on addresses that other hosts can reach, although a hostile peer can abort the process.
    pub trust_network: bool,
    /// Deadline of every wait.
    pub timeout: Duration,
    /// Deadline for the whole job to come together.
    pub startup_timeout: Duration,
    /// How long this node looks for news before its thread sleeps: it burns a core for this long after each message, and
    /// saves a wake-up when the next one comes soon.
    pub spin: Duration,
    /// What the scheduler tells all nodes of the job; other nodes' settings of these have no effect.
    pub shared: JobConfig,
    /// Whether sums are formed in rank order, bit-identical from run to run.
    pub deterministic: bool,
    /// What a worker may have unfinished before the next call waits.
    pub window: WindowLimits,
    /// What to log, in the form of a log filter.
    pub log: String,
}

impl NodeConfig {
    /// Where the van of this node listens: `tcp://host:port`, or a socket of its own beside the scheduler's,
    /// `ipc:///folder/worker-0123456789abcdef`. `None` where nodes are known by rank or by name.
    #[must_use]
    pub fn listens_on(&self, node: NodeId) -> Option<Endpoint> {
        match transport::addressing(self.transport) {
            Addressing::HostPort => Some(Endpoint(format!("tcp://{}", self.listen))),
            Addressing::Socket => match self.scheduler.as_ref()? {
                SchedulerAddress::Socket(scheduler) => {
                    Some(SchedulerAddress::Socket(address::socket_of(scheduler, self.role, node)).endpoint())
                }
                _ => None,
            },
            Addressing::Rank | Addressing::Job => None,
        }
    }
}
