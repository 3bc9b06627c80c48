//! Which transports are compiled in, and how a node gets its van. The only place that asks for transport features.

use std::sync::{Arc, LazyLock};

use kv_core::cluster::{NodeId, Role};
use kv_core::van::{InboxLimits, MemoryHub};
use kv_core::{Error, Inbox, Van, VanError};

use crate::config::NodeConfig;

/// How the nodes of a job find each other over a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Addressing {
    /// Every node listens on a host and a port; the scheduler's are known to all.
    HostPort,
    /// Every node listens on a socket in the file system, all in one folder; the scheduler's is known to all.
    Socket,
    /// The nodes are the ranks of an MPI job; the scheduler is rank 0.
    Rank,
    /// The nodes are threads of one process; the scheduler is known by the name of the job.
    Job,
}

/// A transport, compiled in or not.
struct Known {
    name: &'static str,
    /// The Cargo feature that brings it.
    feature: Option<&'static str>,
    addressing: Addressing,
}

/// All transports there are, the preferred one first.
const KNOWN: &[Known] = &[
    Known { name: "tcp", feature: Some("tcp"), addressing: Addressing::HostPort },
    Known { name: "zmq", feature: Some("zmq"), addressing: Addressing::HostPort },
    Known { name: "zmq-ipc", feature: Some("zmq"), addressing: Addressing::Socket },
    Known { name: "mpi", feature: Some("mpi"), addressing: Addressing::Rank },
    Known { name: "memory", feature: None, addressing: Addressing::Job },
];

/// The transport when none is asked for.
pub(crate) const DEFAULT: &str = "tcp";

/// A van that listens.
pub(crate) struct Bound {
    pub(crate) van: Arc<dyn Van>,
    pub(crate) inbox: Inbox,
    /// How many workers and servers the job has, where the transport knows it by itself.
    pub(crate) sizes: Option<Sizes>,
}

/// How many nodes of each role there are.
pub(crate) struct Sizes {
    pub(crate) workers: u16,
    pub(crate) servers: u16,
}

/// Where the memory vans of this process meet.
static MEMORY: LazyLock<MemoryHub> = LazyLock::new(MemoryHub::new);

/// A van of the configured transport, listening. `advertise` is the host the others reach this node by, unless the
/// configuration says another.
#[allow(clippy::unused_async, reason = "a build with memory alone awaits nothing")]
pub(crate) async fn bind(config: &NodeConfig, node: NodeId, advertise: Option<String>) -> Result<Bound, Error> {
    match config.transport {
        #[cfg(feature = "tcp")]
        "tcp" => {
            let mut tcp = kv_transport_tcp::TcpConfig::new(config.job.clone(), node, config.role);
            tcp.bind = config.listen.to_string();
            tcp.advertise_host = config.advertise.clone().or(advertise);
            let (van, inbox) = kv_transport_tcp::TcpVan::bind(tcp).await?;
            Ok(Bound { van: Arc::new(van), inbox, sizes: None })
        }
        #[cfg(feature = "mpi")]
        "mpi" => bind_mpi(config).await,
        "memory" => bind_memory(config, node),
        other => {
            drop(advertise);
            Err(Error::Config(find(other).err().unwrap_or_else(|| format!("transport {other} has no van"))))
        }
    }
}

#[cfg(feature = "mpi")]
async fn bind_mpi(config: &NodeConfig) -> Result<Bound, Error> {
    let mut mpi = kv_transport_mpi::MpiConfig::new(config.job.clone(), config.role);
    mpi.start_deadline = config.startup_timeout;
    let (van, inbox) = kv_transport_mpi::MpiVan::bind(mpi).await?;
    let roles = van.roles();
    if let Some(rank) = (0..roles.len()).find(|&rank| (roles[rank] == Role::Scheduler) != (rank == 0)) {
        let found = format!("rank {rank} is a {}", roles[rank]);
        let expected = "expected one scheduler, as rank 0, and servers and workers behind it";
        return Err(Error::Config(format!("the ranks of the MPI job: {expected}; found: {found}")));
    }
    // The world is far smaller than what a u16 can count: the scheduler checks it.
    let count = |role| u16::try_from(roles.iter().filter(|other| **other == role).count()).unwrap_or(u16::MAX);
    let sizes = Sizes { workers: count(Role::Worker), servers: count(Role::Server) };
    Ok(Bound { van: Arc::new(van), inbox, sizes: Some(sizes) })
}

/// What is left to do after the van of a node was closed in good order: under MPI, to end it, which waits for all other
/// nodes. To be awaited on the thread that called [`bind`].
#[allow(clippy::unused_async, reason = "a build without MPI awaits nothing")]
pub(crate) async fn end() {
    #[cfg(feature = "mpi")]
    kv_transport_mpi::end().await;
}

fn bind_memory(config: &NodeConfig, node: NodeId) -> Result<Bound, Error> {
    let limits = InboxLimits::default();
    let bound = match config.role {
        Role::Scheduler => MEMORY.bind_named(node, &config.job, limits).map_err(|error| match error {
            VanError::Bind { reason, .. } => Error::Config(format!(
                "job (--job, KV_JOB): expected a name that no other job has now which runs over memory in this \
                 process, found {:?} ({reason})",
                config.job
            )),
            other => other.into(),
        })?,
        Role::Server | Role::Worker | Role::Observer => MEMORY.bind(node, limits)?,
    };
    Ok(Bound { van: Arc::new(bound.0), inbox: bound.1, sizes: None })
}

/// Names of the transports compiled into this build, the preferred one first.
#[must_use]
pub fn names() -> &'static [&'static str] {
    &[
        #[cfg(feature = "tcp")]
        "tcp",
        #[cfg(feature = "mpi")]
        "mpi",
        "memory",
    ]
}

/// The transport of this name, or why there is none: what was expected and what was found.
///
/// # Errors
/// When the name is unknown, or its transport is not compiled in.
pub fn find(name: &str) -> Result<&'static str, String> {
    if let Some(found) = names().iter().find(|known| **known == name) {
        return Ok(found);
    }
    let hint = match KNOWN.iter().find(|known| known.name == name).and_then(|known| known.feature) {
        Some(feature) => {
            let all: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
            let all = all.join(", ");
            format!("; this build lacks the Cargo feature {feature}, which brings it (all transports: {all})")
        }
        None => String::new(),
    };
    Err(format!("expected one of {}, found {name:?}{hint}", names().join(", ")))
}

/// How nodes find each other over the transport of this name, compiled in or not.
#[must_use]
pub fn addressing(name: &str) -> Addressing {
    // Of a name that nobody knows, another error says so.
    KNOWN.iter().find(|known| known.name == name).map_or(Addressing::HostPort, |known| known.addressing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_and_in_the_same_order() {
        let known: Vec<&str> = KNOWN.iter().map(|known| known.name).filter(|name| names().contains(name)).collect();
        assert_eq!(known, names());
        for known in KNOWN.iter().filter(|known| !names().contains(&known.name)) {
            let problem = find(known.name).unwrap_err();
            assert!(problem.contains(&format!("the Cargo feature {}", known.feature.unwrap())), "{problem}");
            assert!(KNOWN.iter().all(|known| problem.contains(known.name)), "{problem}");
        }
        assert!(!find("pigeon").unwrap_err().contains("feature"));
    }
}
