//! The van itself.

use std::sync::Arc;

use async_trait::async_trait;
use kv_core::cluster::NodeId;
use kv_core::van::{Capability, Endpoint, Inbox, InboxSender, TrySendError, Van, VanError, VanEvent};
use kv_core::wire::Message;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::accept::accept_all;
use crate::address::{self, SCHEME};
use crate::config::TcpConfig;
use crate::dial;
use crate::handshake::TEXT_BYTES_MAX;
use crate::link::Link;
use crate::peers::Shared;

/// A van over TCP. See the [crate documentation](crate) for how it behaves.
///
/// Its tasks run on the runtime that [`TcpVan::bind`] was called on, which may be a current-thread one. Dropping it
/// without [`close`](Van::close) stops everything at once, like a process that died: what is queued is lost, and the
/// peers see the links break.
pub struct TcpVan {
    shared: Arc<Shared>,
    acceptor: AbortHandle,
    /// Turns false when the listening socket is closed.
    listening: watch::Receiver<bool>,
}

enum Route {
    Own(InboxSender),
    Link(Arc<Link>),
}

impl TcpVan {
    /// Listens on the address of `config` and returns the van with its inbox.
    ///
    /// # Errors
    /// [`VanError::Bind`], naming the address, when it cannot be listened on or cannot be advertised, and when the
    /// job's name is longer than 255 bytes.
    ///
    /// # Cancel safety
    /// Nothing is left behind when the future is dropped.
    pub async fn bind(config: TcpConfig) -> Result<(Self, Inbox), VanError> {
        let failed = |reason: String| VanError::Bind { endpoint: Endpoint(format!("{SCHEME}{}", config.bind)), reason };
        if config.job.len() > TEXT_BYTES_MAX {
            return Err(failed(format!("the job's name is longer than {TEXT_BYTES_MAX} bytes")));
        }
        let to = address::split(&config.bind).ok_or_else(|| failed("it is not of the form HOST:PORT".to_owned()))?;
        let listener = TcpListener::bind(to).await.map_err(|error| failed(error.to_string()))?;
        let local = listener.local_addr().map_err(|error| failed(error.to_string()))?;
        let endpoint = address::advertised(&config, local).map_err(failed)?;

        let (sender, inbox) = Inbox::new(config.inbox);
        let shared = Arc::new(Shared::new(config, endpoint, sender));
        let (stopped, listening) = watch::channel(true);
        let accepting = accept_all(Arc::clone(&shared), listener);
        let acceptor = tokio::spawn(async move {
            accepting.await;
            stopped.send_replace(false);
        });
        Ok((Self { shared, acceptor: acceptor.abort_handle(), listening }, inbox))
    }

    /// How many connections were dropped because whoever opened them is no node of this job.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.shared.strangers()
    }

    fn route(&self, to: NodeId, message: &Message) -> Result<Route, VanError> {
        let route = {
            let table = self.shared.table();
            let Some(inbox) = &table.inbox else { return Err(VanError::Closed) };
            if to == self.shared.config.node {
                Route::Own(inbox.clone())
            } else {
                let link = table.links.get(&to).filter(|link| link.is_live());
                Route::Link(Arc::clone(link.ok_or(VanError::UnknownPeer(to))?))
            }
        };
        let bytes_max = self.shared.config.part_bytes_max;
        match message.parts().iter().map(|part| part.len() as u64).find(|&bytes| bytes > bytes_max) {
            Some(bytes) => Err(VanError::TooLarge { bytes, bytes_max }),
            None => Ok(route),
        }
    }

    async fn closed(&self, links: &[Arc<Link>]) -> Result<(), VanError> {
        let mut outcome = Ok(());
        for link in links {
            let ended = link.ended().await;
            outcome = outcome.and(ended);
        }
        let mut listening = self.listening.clone();
        // An error means that the task is gone, and the socket with it.
        let _ = listening.wait_for(|listening| !listening).await;
        outcome
    }
}

#[async_trait]
impl Van for TcpVan {
    fn node(&self) -> NodeId {
        self.shared.config.node
    }

    fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    fn capability(&self) -> Capability {
        Capability {
            part_bytes_max: self.shared.config.part_bytes_max,
            dynamic_peers: true,
            reports_peer_down: true,
            public_port: true,
            reliable: true,
        }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<NodeId, VanError> {
        dial::connect(&self.shared, endpoint).await
    }

    async fn send(&self, to: NodeId, message: Message) -> Result<(), VanError> {
        match self.route(to, &message)? {
            Route::Link(link) => link.send(message).await,
            Route::Own(inbox) => {
                let reserved = inbox.reserve(message.body_bytes()).await;
                let event = VanEvent::Message { from: to, message };
                if inbox.deliver(reserved, event).await { Ok(()) } else { Err(VanError::UnknownPeer(to)) }
            }
        }
    }

    fn try_send(&self, to: NodeId, message: Message) -> Result<(), TrySendError> {
        match self.route(to, &message).map_err(TrySendError::Failed)? {
            Route::Link(link) => link.try_send(message),
            Route::Own(inbox) => inbox.try_deliver(to, message).map_err(|refused| match refused {
                Some(message) => TrySendError::Full(message),
                None => TrySendError::Failed(VanError::UnknownPeer(to)),
            }),
        }
    }

    /// As [`Van::close`]. Waits for the peers to have read what was queued, at most for the configured deadline.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the closing; calling it again waits for what is left of it.
    async fn close(&self) -> Result<(), VanError> {
        let links: Vec<_> = {
            let mut table = self.shared.table();
            table.inbox = None;
            for dial in std::mem::take(&mut table.dials).into_values() {
                dial.task.abort();
            }
            table.links.values().cloned().collect()
        };
        links.iter().for_each(|link| link.accept_no_more());
        self.shared.closing.send_replace(true);
        let deadline = self.shared.config.close_deadline;
        if let Ok(outcome) = timeout(deadline, self.closed(&links)).await {
            return outcome;
        }
        let mut outcome = Ok(());
        for link in links.iter().filter(|link| !link.has_ended()) {
            link.abort();
            let reason = format!("it did not read everything within {deadline:?}");
            let lost = Err(VanError::LinkLost { node: link.node, reason });
            outcome = outcome.and(lost.clone());
            link.end(lost);
        }
        self.shared.table().links.clear();
        outcome
    }
}

impl Drop for TcpVan {
    fn drop(&mut self) {
        self.acceptor.abort();
        let mut table = self.shared.table();
        table.inbox = None;
        for dial in std::mem::take(&mut table.dials).into_values() {
            dial.task.abort();
        }
        for link in std::mem::take(&mut table.links).into_values() {
            link.abort();
        }
    }
}
