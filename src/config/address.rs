//! Where a scheduler is: a host and a port, a socket in the file system, a rank, or the name of a job.

use std::fmt;

use kv_core::Endpoint;
use kv_core::cluster::{NodeId, Role};
use kv_core::van::MemoryHub;

use super::HostPort;
use super::settings::quoted;

/// Where the scheduler of a job is, in the terms of its transport. Shown as the endpoint that vans connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedulerAddress {
    /// `tcp` and `zmq`: a host and a port.
    Tcp(HostPort),
    /// `zmq-ipc`: the absolute path of a socket. The sockets of all other nodes lie in the same folder.
    Socket(String),
    /// `mpi`: always rank 0.
    RankZero,
    /// `memory`: the name of the job, in this process.
    Job(String),
}

impl SchedulerAddress {
    /// What the vans connect to: `tcp://host:port`, `ipc:///path`, `mpi://0` or `mem://job`.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        match self {
            Self::Tcp(address) => address.endpoint(),
            Self::Socket(path) => Endpoint(format!("{IPC}{path}")),
            Self::RankZero => Endpoint("mpi://0".to_owned()),
            Self::Job(name) => MemoryHub::named(name),
        }
    }

    /// The host, where there is one.
    pub(crate) fn host_port(&self) -> Option<&HostPort> {
        match self {
            Self::Tcp(address) => Some(address),
            Self::Socket(_) | Self::RankZero | Self::Job(_) => None,
        }
    }
}

impl fmt::Display for SchedulerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint().fmt(f)
    }
}

/// Form of a socket's address.
const IPC: &str = "ipc://";

/// Longest path of a socket in bytes; the operating system's structure ends with a zero byte.
const SOCKET_BYTES_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// The name of the scheduler's socket in a folder of its own.
const SCHEDULER_SOCKET: &str = "scheduler";

/// The path in `ipc:///path`; `None` when the text is something else.
pub(super) fn socket_path(text: &str) -> Option<&str> {
    let path = text.strip_prefix(IPC)?;
    // A replacement character stands for bytes that were no text, so that this is another path than what was meant.
    let is_text = !path.chars().any(|c| c.is_control() || c == char::REPLACEMENT_CHARACTER);
    (is_text && path.starts_with('/') && !path.ends_with('/')).then_some(path)
}

pub(super) fn socket_text(path: &str) -> String {
    format!("{IPC}{path}")
}

/// Checks that the operating system can address the scheduler's socket, and those of the other nodes beside it.
pub(super) fn check_socket(path: &str) -> Result<(), String> {
    let longest = [Role::Scheduler, Role::Server, Role::Worker, Role::Observer]
        .map(|role| socket_of(path, role, NodeId(u64::MAX)).len())
        .into_iter()
        .fold(0, usize::max);
    if longest <= SOCKET_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "expected a path short enough that it and the sockets of the other nodes beside it have at most \
         {SOCKET_BYTES_MAX} bytes, found one that needs {longest}: {}",
        quoted(&socket_text(path))
    ))
}

/// The socket of a node in the job of the scheduler at `scheduler`.
pub(super) fn socket_of(scheduler: &str, role: Role, node: NodeId) -> String {
    match (role, scheduler.rsplit_once('/')) {
        (Role::Scheduler, _) | (_, None) => scheduler.to_owned(),
        (_, Some((folder, _))) => format!("{folder}/{role}-{node}"),
    }
}

/// The scheduler's socket in a folder that is made for one job.
pub(crate) fn scheduler_socket_in(folder: &str) -> Result<SchedulerAddress, String> {
    let path = format!("{folder}/{SCHEDULER_SOCKET}");
    check_socket(&path)?;
    Ok(SchedulerAddress::Socket(path))
}
