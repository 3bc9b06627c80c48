//! The table of links, and how a connection becomes one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kv_core::cluster::{NodeId, Role};
use kv_core::van::{Endpoint, InboxSender, VanError, VanEvent};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::config::TcpConfig;
use crate::handshake::Hello;
use crate::link::Link;
use crate::reader::{End, Reader};
use crate::writer;

/// What the van and all its tasks share.
pub(crate) struct Shared {
    pub(crate) config: TcpConfig,
    pub(crate) endpoint: Endpoint,
    /// Where all tasks run, whoever calls.
    pub(crate) runtime: Handle,
    /// Set once, by `close`.
    pub(crate) closing: watch::Sender<bool>,
    /// Told whenever a link was added.
    pub(crate) linked: Notify,
    strangers: AtomicU64,
    table: Mutex<Table>,
}

/// Who there is a link to. All decisions about links are made under its lock, which is never held across an await.
pub(crate) struct Table {
    /// `None` once the van is closed.
    pub(crate) inbox: Option<InboxSender>,
    pub(crate) links: HashMap<NodeId, Arc<Link>>,
    /// Which live link an address belongs to: what peers say of themselves, and what was dialed.
    pub(crate) addresses: HashMap<Endpoint, NodeId>,
    /// Dials under way, shared by all who connect to the same address.
    pub(crate) dials: HashMap<Endpoint, Dial>,
}

/// A dial under way. The outcome comes once; when it never comes, the van was closed.
pub(crate) struct Dial {
    pub(crate) outcome: watch::Receiver<Option<Result<NodeId, VanError>>>,
    pub(crate) task: AbortHandle,
}

/// What to do about a link that exists already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It stays.
    Keep,
    /// It goes: the peer, whose word counts, does not have it any more.
    Replace,
}

/// Why a connection does not become a link.
pub(crate) enum NoLink {
    /// There is one already; here is the connection back.
    Exists(TcpStream),
    /// The van is closed.
    Closed,
}

impl Shared {
    pub(crate) fn new(config: TcpConfig, endpoint: Endpoint, inbox: InboxSender) -> Self {
        let table =
            Table { inbox: Some(inbox), links: HashMap::new(), addresses: HashMap::new(), dials: HashMap::new() };
        Self {
            config,
            endpoint,
            runtime: Handle::current(),
            closing: watch::Sender::new(false),
            linked: Notify::new(),
            strangers: AtomicU64::new(0),
            table: Mutex::new(table),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        // No code panics while holding this lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hello(&self) -> Hello {
        let config = &self.config;
        Hello { node: config.node, role: config.role, job: config.job.clone(), endpoint: self.endpoint.clone() }
    }

    /// Whether this node decides which connection to `peer` becomes the link.
    pub(crate) fn decides_over(&self, peer: NodeId) -> bool {
        self.config.node < peer
    }

    pub(crate) fn count_stranger(&self) {
        self.strangers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }

    /// Makes the connection the link to `peer` and lets its writer finish the handshake with `handshake`. A link that
    /// is just ending is waited for, so that its end is reported before anything of the new one.
    ///
    /// # Cancel safety
    /// A dropped future has made a complete link or none.
    pub(crate) async fn link(
        self: &Arc<Self>,
        peer: &Peer,
        stream: TcpStream,
        handshake: Vec<u8>,
        existing: Existing,
    ) -> Result<(), NoLink> {
        loop {
            let old = {
                let mut table = self.table();
                let Some(inbox) = table.inbox.clone() else { return Err(NoLink::Closed) };
                match table.links.get(&peer.node) {
                    None => {
                        let link = self.drive(peer, stream, handshake, inbox);
                        table.links.insert(peer.node, link);
                        table.addresses.insert(peer.endpoint.clone(), peer.node);
                        break;
                    }
                    Some(old) if old.is_live() && existing == Existing::Keep => return Err(NoLink::Exists(stream)),
                    Some(old) => Arc::clone(old),
                }
            };
            old.give_up("it opened a new connection");
            // Its outcome was reported to the inbox.
            let _ = old.ended().await;
        }
        self.linked.notify_waiters();
        tracing::debug!(peer = %peer.node, role = peer.role, endpoint = %peer.endpoint, "linked");
        Ok(())
    }

    /// Starts the two tasks of a link.
    fn drive(self: &Arc<Self>, peer: &Peer, stream: TcpStream, handshake: Vec<u8>, inbox: InboxSender) -> Arc<Link> {
        let config = &self.config;
        let (link, queue) = Link::new(peer.node, config.queue);
        let (read_half, write_half) = stream.into_split();
        let writing = writer::write(write_half, handshake, queue, self.closing.subscribe());
        let writer = self.runtime.spawn({
            let link = Arc::clone(&link);
            async move {
                let written = writing.await;
                // A socket that fails to write has failed for good; the reader takes what arrived and ends as well.
                if let Err(error) = &written {
                    link.lose(error.to_string());
                }
                written.is_ok()
            }
        });
        let reader = Reader::new(read_half, config.part_bytes_max, config.stall_deadline);
        let stop_writer = writer.abort_handle();
        let reader = self.runtime.spawn(read(Arc::clone(self), Arc::clone(&link), reader, writer, inbox));
        link.driven_by([reader.abort_handle(), stop_writer]);
        link
    }
}

/// Who is at the other end of a connection.
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) endpoint: Endpoint,
    /// For the log; a dialer is not told the acceptor's role.
    pub(crate) role: Option<String>,
}

impl Peer {
    pub(crate) fn of_hello(hello: Hello) -> Self {
        let role: Role = hello.role;
        Self { node: hello.node, endpoint: hello.endpoint, role: Some(role.to_string()) }
    }
}

/// The reader task: it also sees to the end of the link.
async fn read(
    shared: Arc<Shared>,
    link: Arc<Link>,
    mut reader: Reader<tokio::net::tcp::OwnedReadHalf>,
    mut writer: JoinHandle<bool>,
    inbox: InboxSender,
) {
    let mut closing = shared.closing.subscribe();
    let end = tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => None,
        () = link.given_up() => None,
        end = reader.deliver_all(link.node, &inbox) => Some(end),
    };
    // The peer's answer to this node's closing can be seen before the closing itself, so the stream's end alone does
    // not tell whether the link was lost.
    let is_closing = *closing.borrow();
    let outcome = if is_closing {
        // What still comes is of no interest, but a connection closed with unread bytes is reset, and a reset could
        // overtake what was written. The peer ends its side when it has read everything.
        drop(inbox);
        let rest = async {
            match end {
                Some(end) => end,
                None => reader.discard_all().await,
            }
        };
        let (rest, written) = tokio::join!(rest, &mut writer);
        if !matches!(rest, End::Closed) {
            link.lose(rest.to_string());
        }
        match link.lost_as() {
            None if matches!(written, Ok(true)) => Ok(()),
            lost => Err(lost.unwrap_or(VanError::Closed)),
        }
    } else {
        // When the writer met the end of the link first, its reason is kept.
        if let Some(end) = end {
            link.lose(end.to_string());
        }
        writer.abort();
        let reason = link.lost_as().unwrap_or(VanError::Closed);
        tracing::debug!(peer = %link.node, %reason, "link lost");
        let reserved = inbox.reserve(0).await;
        tokio::select! {
            biased;
            // When nobody reads the inbox, nobody needs to know.
            _ = inbox.deliver(reserved, VanEvent::PeerDown { node: link.node, reason }) => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
        Ok(())
    };
    finish(&shared, &link, outcome);
}

fn finish(shared: &Shared, link: &Arc<Link>, outcome: Result<(), VanError>) {
    let mut table = shared.table();
    if table.links.get(&link.node).is_some_and(|current| Arc::ptr_eq(current, link)) {
        table.links.remove(&link.node);
        table.addresses.retain(|_, node| *node != link.node);
    }
    drop(table);
    link.end(outcome);
}

/// Settings of every connection. None of them is essential, so a refusal of the system is only noted.
pub(crate) fn set_up(stream: &TcpStream, config: &TcpConfig) {
    let probes = TcpKeepalive::new().with_time(config.keepalive);
    #[cfg(not(windows))]
    let probes = probes.with_interval(config.keepalive / 3).with_retries(3);
    let done = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(&probes));
    if let Err(error) = done {
        tracing::debug!(%error, "cannot set up a connection");
    }
}
