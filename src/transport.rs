//! Which transports are compiled in, and how a node gets its van. The only place that asks for transport features.

use std::sync::Arc;

use kv_core::cluster::NodeId;
use kv_core::{Error, Inbox, Van};

use crate::config::NodeConfig;

/// A van of the configured transport, listening. `advertise` is the host the others reach this node by, unless the
/// configuration says another.
#[allow(clippy::unused_async, reason = "a build without any transport awaits nothing")]
pub(crate) async fn bind(
    config: &NodeConfig,
    node: NodeId,
    advertise: Option<String>,
) -> Result<(Arc<dyn Van>, Inbox), Error> {
    match config.transport {
        #[cfg(feature = "tcp")]
        "tcp" => {
            let mut tcp = kv_transport_tcp::TcpConfig::new(config.job.clone(), node, config.role);
            tcp.bind = config.listen.to_string();
            tcp.advertise_host = config.advertise.clone().or(advertise);
            let (van, inbox) = kv_transport_tcp::TcpVan::bind(tcp).await?;
            Ok((Arc::new(van), inbox))
        }
        other => {
            drop((node, advertise));
            Err(Error::Config(find(other).err().unwrap_or_else(|| format!("transport {other} has no van"))))
        }
    }
}

/// Names of the transports compiled into this build, the preferred one first.
#[must_use]
pub fn names() -> &'static [&'static str] {
    &[
        #[cfg(feature = "tcp")]
        "tcp",
    ]
}

/// Names of all transports there are, compiled in or not; each is also the name of its feature.
const KNOWN: &[&str] = &["tcp", "zmq", "mpi"];

/// The transport of this name, or why there is none: what was expected and what was found.
///
/// # Errors
/// When the name is unknown, or its transport is not compiled in.
pub fn find(name: &str) -> Result<&'static str, String> {
    if let Some(found) = names().iter().find(|known| **known == name) {
        return Ok(found);
    }
    let expected = match names() {
        [] => "a build with a transport (this one has none)".to_owned(),
        some => format!("one of {}", some.join(", ")),
    };
    let hint = match KNOWN.contains(&name) {
        true => format!(" (this version has no {name} transport, or was built without the feature {name})"),
        false => String::new(),
    };
    Err(format!("expected {expected}, found {name:?}{hint}"))
}
