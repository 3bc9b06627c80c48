//! The van itself.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use kv_core::cluster::{NodeId, Role};
use kv_core::van::{
    Capability, Endpoint, Inbox, InboxSender, NotQueued, SendQueue, TrySendError, Van, VanError, VanEvent,
};
use kv_core::wire::Message;
use tokio::sync::oneshot;

use crate::config::MpiConfig;
use crate::ending;
use crate::engine::Engine;
use crate::idle::{IdlePolicy, Look, Timer};
use crate::requests::Requests;
use crate::shared::{PeerQueue, SCHEME, Shared, node_of};
use crate::transfer::{Peer, Transfer};
use crate::world::{Introduction, StartError, World, cut, host_name};

/// A van over MPI. See the [crate documentation](crate) for how it behaves.
pub struct MpiVan {
    shared: Arc<Shared>,
    transfer: Arc<Mutex<Transfer>>,
    /// Senders use MPI where they stand, when nobody else does.
    direct: bool,
    policy: IdlePolicy,
    roles: Vec<Role>,
    close_deadline: Duration,
}

enum Route {
    Own(InboxSender),
    Peer(usize),
}

impl MpiVan {
    /// Starts MPI and returns the van with its inbox, once all ranks have started. A task of the current runtime does
    /// the van's work, so nothing is handed over between threads when that is a runtime of one thread.
    ///
    /// When the van was closed, [`end`](crate::end) ends MPI; a rank whose van was dropped without being closed has failed, and
    /// has to exit for the launcher to end the job.
    ///
    /// # Errors
    /// [`VanError::Bind`]: there is no world of several ranks, MPI was started before, ranks are missing at the
    /// deadline, or belong to another job.
    ///
    /// # Cancel safety
    /// A dropped future leaves MPI started and not ended: this rank has failed.
    pub async fn bind(config: MpiConfig) -> Result<(Self, Inbox), VanError> {
        let (van, inbox, engine) = Self::prepare(config, true).await?;
        ending::begin(tokio::spawn(engine.run()));
        Ok((van, inbox))
    }

    /// As [`MpiVan::bind`], with a thread of its own that does the van's work and ends MPI.
    ///
    /// # Errors
    /// As [`MpiVan::bind`].
    pub async fn bind_apart(config: MpiConfig) -> Result<(Self, Inbox), VanError> {
        let (started, start) = oneshot::channel();
        let spawned = std::thread::Builder::new().name("kv-mpi".to_owned()).spawn(move || own_thread(config, started));
        spawned.map_err(|error| failed(&error))?;
        start.await.unwrap_or_else(|_| Err(failed(&"its thread ended")))
    }

    /// `direct`: whether senders may use MPI where they stand; else only the thread that runs the engine does.
    async fn prepare(config: MpiConfig, direct: bool) -> Result<(Self, Inbox, Engine), VanError> {
        let mut world = World::start().map_err(|error| failed(&error))?;
        let own = Introduction { role: config.role, job: config.job.clone(), host: host_name() };
        let ranks = world.meet(&own, config.start_deadline).await.map_err(|error| failed(&error))?;
        check(&own, &ranks).map_err(|error| failed(&error))?;

        let neighbours = ranks.iter().filter(|rank| rank.host == cut(&own.host)).count();
        let policy = config.idle.unwrap_or_else(|| IdlePolicy::for_host(neighbours, cores()));
        let timer = Timer::new().map_err(|error| failed(&error))?;
        let (sender, inbox) = Inbox::new(config.inbox);
        let (queues, peers) = ranks
            .iter()
            .map(|_| {
                let (queue, queued) = SendQueue::new(config.queue);
                (PeerQueue::new(queue), Peer::new(queued))
            })
            .unzip();
        let shared = Arc::new(Shared::new(world.rank as usize, config.part_bytes_max, queues, sender.clone()));
        let requests = Requests::new(world.comm(), config.piece_bytes_max);
        let transfer = Arc::new(Mutex::new(Transfer::new(requests, Arc::clone(&shared), sender, peers)));
        let engine = Engine::new(world, Arc::clone(&transfer), Arc::clone(&shared), policy, timer, !direct);
        let roles = ranks.into_iter().map(|rank| rank.role).collect();
        let close_deadline = config.close_deadline;
        Ok((Self { shared, transfer, direct, policy, roles, close_deadline }, inbox, engine))
    }

    /// The role of every rank, this one included.
    #[must_use]
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// The address of a rank.
    #[must_use]
    pub fn endpoint_of(rank: usize) -> Endpoint {
        Endpoint(format!("{SCHEME}{rank}"))
    }

    /// Something was queued for a rank.
    fn queued(&self, rank: usize) {
        self.shared.ring(rank);
        if self.direct
            && let Ok(mut transfer) = self.transfer.try_lock()
        {
            // The engine need not know: whoever waits for the answer looks, and the engine does before long.
            return transfer.send_now(rank);
        }
        self.shared.wake();
    }

    fn route(&self, to: NodeId, message: &Message) -> Result<Route, VanError> {
        let route = {
            let inbox = self.shared.inbox();
            let Some(inbox) = &*inbox else { return Err(self.shared.gone(self.shared.rank)) };
            let rank = to.0.checked_sub(1).and_then(|rank| usize::try_from(rank).ok());
            match rank.filter(|rank| *rank < self.shared.peers.len()) {
                None => return Err(VanError::UnknownPeer(to)),
                Some(rank) if rank == self.shared.rank => Route::Own(inbox.clone()),
                Some(rank) => Route::Peer(rank),
            }
        };
        let bytes_max = self.shared.part_bytes_max;
        match message.parts().iter().map(|part| part.len() as u64).find(|&bytes| bytes > bytes_max) {
            Some(bytes) => Err(VanError::TooLarge { bytes, bytes_max }),
            None => Ok(route),
        }
    }
}

/// Cores of this host, not only those that this process was bound to: each rank may be bound to another.
fn cores() -> usize {
    // SAFETY: reads a number of the system.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).ok().filter(|cores| *cores > 0).unwrap_or(1)
}

fn failed(reason: &dyn std::fmt::Display) -> VanError {
    VanError::Bind { endpoint: Endpoint(SCHEME.to_owned()), reason: reason.to_string() }
}

/// Whether all ranks take part in one job with one scheduler, which is rank 0.
fn check(own: &Introduction, ranks: &[Introduction]) -> Result<(), StartError> {
    let disagrees = |rank: usize, what: String| Err(StartError::Disagrees { rank, what });
    for (rank, other) in ranks.iter().enumerate() {
        if other.job != cut(&own.job) {
            return disagrees(rank, format!("it belongs to job '{}', this rank to job '{}'", other.job, own.job));
        }
    }
    Ok(())
}

fn own_thread(config: MpiConfig, started: oneshot::Sender<Result<(MpiVan, Inbox), VanError>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(failed(&error)))),
    };
    runtime.block_on(async move {
        match MpiVan::prepare(config, false).await {
            Ok((van, inbox, engine)) => {
                if started.send(Ok((van, inbox))).is_ok()
                    && let Some(mut world) = engine.run().await
                {
                    world.finish();
                }
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
}

#[async_trait]
impl Van for MpiVan {
    fn node(&self) -> NodeId {
        node_of(self.shared.rank)
    }

    fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    fn capability(&self) -> Capability {
        Capability {
            part_bytes_max: self.shared.part_bytes_max,
            dynamic_peers: false,
            reports_peer_down: false,
            public_port: false,
            reliable: true,
        }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<NodeId, VanError> {
        if self.shared.inbox().is_none() {
            return Err(self.shared.gone(self.shared.rank));
        }
        let rank = endpoint.0.strip_prefix(SCHEME).and_then(|rank| rank.parse::<usize>().ok());
        let Some(rank) = rank else {
            return Err(VanError::UnsupportedEndpoint { endpoint: endpoint.clone(), expected: "mpi://RANK" });
        };
        let size = self.shared.peers.len();
        if rank >= size {
            let reason = format!("the world has {size} ranks, from 0");
            return Err(VanError::Unreachable { endpoint: endpoint.clone(), reason });
        }
        Ok(node_of(rank))
    }

    async fn send(&self, to: NodeId, message: Message) -> Result<(), VanError> {
        match self.route(to, &message)? {
            Route::Peer(rank) => {
                if !self.shared.peers[rank].queue.send(message).await {
                    return Err(self.shared.gone(rank));
                }
                self.queued(rank);
                Ok(())
            }
            Route::Own(inbox) => {
                let reserved = inbox.reserve(message.body_bytes()).await;
                let event = VanEvent::Message { from: to, message };
                if inbox.deliver(reserved, event).await { Ok(()) } else { Err(VanError::UnknownPeer(to)) }
            }
        }
    }

    fn try_send(&self, to: NodeId, message: Message) -> Result<(), TrySendError> {
        match self.route(to, &message).map_err(TrySendError::Failed)? {
            Route::Peer(rank) => match self.shared.peers[rank].queue.try_send(message) {
                Ok(()) => {
                    self.queued(rank);
                    Ok(())
                }
                Err(NotQueued::Full(message)) => Err(TrySendError::Full(message)),
                Err(NotQueued::Closed) => Err(TrySendError::Failed(self.shared.gone(rank))),
            },
            Route::Own(inbox) => inbox.try_deliver(to, message).map_err(|refused| match refused {
                Some(message) => TrySendError::Full(message),
                None => TrySendError::Failed(VanError::UnknownPeer(to)),
            }),
        }
    }

    fn look(&self) -> bool {
        if !self.direct {
            return false;
        }
        let news = self.policy.look(|| self.transfer.try_lock().map_or(Look::Quiet, |mut transfer| transfer.look()));
        if !news {
            // From now on the engine looks, and it may have a long sleep before it.
            self.shared.wake();
        }
        news
    }

    /// As [`Van::close`]. Waits until the peers have taken what was queued, at most for the configured deadline.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the closing; calling it again waits for what is left of it.
    async fn close(&self) -> Result<(), VanError> {
        *self.shared.inbox() = None;
        self.shared.peers.iter().for_each(|peer| peer.queue.close());
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake();
        let mut closed = self.shared.closed.subscribe();
        let deadline = self.close_deadline;
        match tokio::time::timeout(deadline, closed.wait_for(Option::is_some)).await {
            Ok(Ok(closed)) => closed.clone().unwrap_or(Ok(())),
            _ => {
                let reason = format!("not every rank read everything within {deadline:?}");
                Err(VanError::LinkLost { node: self.node(), reason })
            }
        }
    }
}

impl Drop for MpiVan {
    fn drop(&mut self) {
        if !self.shared.closing.load(Ordering::Acquire) {
            self.shared.fail("this node's van was dropped".to_owned());
        }
        self.shared.wake();
    }
}
