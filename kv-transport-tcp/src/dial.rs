//! Connecting to an address.

use std::sync::Arc;
use std::time::Duration;

use kv_core::cluster::NodeId;
use kv_core::van::{Endpoint, VanError};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::address;
use crate::handshake::{Answer, HandshakeError, OPEN};
use crate::peers::{Dial, Existing, NoLink, Peer, Shared, set_up};

/// How long a dialer that was told of a link waits for it at first; see [`dial`].
const PATIENCE: Duration = Duration::from_millis(20);

/// Longest such wait.
const PATIENCE_MAX: Duration = Duration::from_millis(500);

/// What one connection came to.
enum Dialed {
    /// It became the link, or there is one.
    Linked(NodeId),
    /// The peer, whose word counts, says that there is one.
    SaidToBeLinked(NodeId),
}

/// Gives the link to `endpoint`, dialing when there is none. All who ask for one address share one dial, which goes on
/// when they stop asking: a dial given up half-way would look like a death to the peer.
pub(crate) async fn connect(shared: &Arc<Shared>, endpoint: &Endpoint) -> Result<NodeId, VanError> {
    address::parse(endpoint)?;
    let mut outcome = {
        let mut table = shared.table();
        if table.inbox.is_none() {
            return Err(VanError::Closed);
        }
        if *endpoint == shared.endpoint {
            return Ok(shared.config.node);
        }
        if let Some(node) = table.addresses.get(endpoint)
            && table.links.get(node).is_some_and(|link| link.is_live())
        {
            return Ok(*node);
        }
        match table.dials.get(endpoint) {
            Some(dial) => dial.outcome.clone(),
            None => {
                let (done, outcome) = watch::channel(None);
                let task = shared.runtime.spawn(dial_and_tell(Arc::clone(shared), endpoint.clone(), done));
                let dial = Dial { outcome: outcome.clone(), task: task.abort_handle() };
                table.dials.insert(endpoint.clone(), dial);
                outcome
            }
        }
    };
    match outcome.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Err(VanError::Closed)),
        Err(_) => Err(VanError::Closed),
    }
}

async fn dial_and_tell(shared: Arc<Shared>, endpoint: Endpoint, done: watch::Sender<Option<Result<NodeId, VanError>>>) {
    let deadline = shared.config.handshake_deadline;
    let outcome = timeout(deadline, dial(&shared, &endpoint)).await.unwrap_or_else(|_| {
        Err(VanError::Unreachable {
            endpoint: endpoint.clone(),
            reason: format!("no link came about within {deadline:?}"),
        })
    });
    let mut table = shared.table();
    table.dials.remove(&endpoint);
    if let Ok(node) = outcome
        && table.links.contains_key(&node)
    {
        table.addresses.insert(endpoint, node);
    }
    drop(table);
    done.send_replace(Some(outcome));
}

/// Dials until there is a link.
///
/// When the peer says that there is one, it is usually just coming about by the peer's own dial, and appears. If it
/// does not, the peer has not noticed yet that a former link is lost: then it helps to dial again.
async fn dial(shared: &Arc<Shared>, endpoint: &Endpoint) -> Result<NodeId, VanError> {
    let mut patience = PATIENCE;
    loop {
        match dial_once(shared, endpoint).await? {
            Dialed::Linked(node) => return Ok(node),
            Dialed::SaidToBeLinked(node) => {
                if timeout(patience, linked(shared, node)).await.is_ok() {
                    return Ok(node);
                }
                patience = (patience * 2).min(PATIENCE_MAX);
            }
        }
    }
}

/// Waits until there is a link to `node`.
async fn linked(shared: &Shared, node: NodeId) {
    loop {
        let added = shared.linked.notified();
        tokio::pin!(added);
        // Registered before looking, so that a link added in between is not missed.
        added.as_mut().enable();
        if node == shared.config.node || shared.table().links.get(&node).is_some_and(|link| link.is_live()) {
            return;
        }
        added.await;
    }
}

async fn dial_once(shared: &Arc<Shared>, endpoint: &Endpoint) -> Result<Dialed, VanError> {
    let (host, port) = address::parse(endpoint)?;
    let unreachable = |reason: String| VanError::Unreachable { endpoint: endpoint.clone(), reason };
    let refused = |reason: String| VanError::Refused { endpoint: endpoint.clone(), reason };
    let mut stream = TcpStream::connect((host, port)).await.map_err(|error| unreachable(error.to_string()))?;
    set_up(&stream, &shared.config);
    stream.write_all(&shared.hello().encode()).await.map_err(|error| unreachable(error.to_string()))?;
    let node = match Answer::read(&mut stream).await {
        Ok(Answer::Welcome(node)) => node,
        Ok(Answer::Linked(node)) => return Ok(Dialed::SaidToBeLinked(node)),
        Ok(Answer::Refused(reason)) => return Err(refused(reason)),
        // It may be about to end, or too busy.
        Err(error @ HandshakeError::Io(_)) => return Err(unreachable(error.to_string())),
        Err(error @ (HandshakeError::Stranger | HandshakeError::Version { .. })) => {
            return Err(refused(error.to_string()));
        }
    };
    if node == shared.config.node {
        return Err(refused(format!("it has this node's own id {node}")));
    }

    let peer = Peer { node, endpoint: endpoint.clone(), role: None };
    let (handshake, existing) =
        if shared.decides_over(node) { (OPEN.to_vec(), Existing::Keep) } else { (Vec::new(), Existing::Replace) };
    match shared.link(&peer, stream, handshake, existing).await {
        // Without a go-ahead the peer drops the connection.
        Ok(()) | Err(NoLink::Exists(_)) => Ok(Dialed::Linked(node)),
        Err(NoLink::Closed) => Err(VanError::Closed),
    }
}
