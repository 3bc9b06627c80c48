//! The loop that owns MPI.
//!
//! ```text
//!   a turn:  queues of the van ──► sends under way
//!            frames that have arrived, while the inbox has room ──► receives under way for their parts
//!            what has completed: memory released, messages whole
//!            whole messages, in each sender's order ──► inbox
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kv_core::Buffer;
use kv_core::van::{InboxSender, Outgoing, Reserved, VanError, VanEvent};
use kv_core::wire::{Header, Message, PARTS};
use tokio::sync::mpsc;

use crate::error::MpiError;
use crate::frame;
use crate::idle::{Idle, Pause};
use crate::requests::{Landing, Requests, Sending};
use crate::shared::{Shared, node_of};
use crate::world::World;

/// Messages under way to one peer: enough to keep it busy, few enough to be looked through in every turn.
const UNDER_WAY_MAX: usize = 64;

/// Frames taken in one turn, so that none of the other steps waits for long.
const FRAMES_PER_TURN: usize = 64;

/// The side of an MPI van that owns MPI: a task that has to run for the van to do anything.
pub(crate) struct Engine {
    // Before the world: its requests belong to the world's communicator.
    requests: Requests,
    /// `None` once it was left.
    world: Option<World>,
    shared: Arc<Shared>,
    /// `None` when nobody reads it any more; what arrives is then thrown away.
    inbox: Option<InboxSender>,
    peers: Vec<Peer>,
    /// Ranks of which something is being received.
    arriving: Vec<usize>,
    /// A frame for which the inbox has no room.
    stalled: Option<(usize, Header, [Option<Bytes>; PARTS])>,
    /// Whole messages wait for room in the inbox's queue.
    blocked: bool,
    under_way: usize,
    idle: Idle,
    part_bytes_max: u64,
}

/// One rank, as seen by the engine.
pub(crate) struct Peer {
    queued: mpsc::Receiver<Outgoing>,
    under_way: usize,
    /// Nothing more will be queued.
    drained: bool,
    incoming: VecDeque<Incoming>,
}

/// A message that is arriving.
struct Incoming {
    header: Header,
    parts: [Part; PARTS],
    reserved: Reserved,
}

enum Part {
    Here(Bytes),
    Landing(Arc<Landing>),
}

/// Why the engine stopped.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error("rank {rank} broke the protocol: {what}")]
    Protocol { rank: usize, what: String },
}

impl Peer {
    pub(crate) fn new(queued: mpsc::Receiver<Outgoing>) -> Self {
        Self { queued, under_way: 0, drained: false, incoming: VecDeque::new() }
    }
}

impl Engine {
    pub(crate) fn new(
        world: World,
        requests: Requests,
        shared: Arc<Shared>,
        inbox: InboxSender,
        peers: Vec<Peer>,
        idle: Idle,
    ) -> Self {
        let part_bytes_max = shared.part_bytes_max;
        Self {
            requests,
            world: Some(world),
            shared,
            inbox: Some(inbox),
            peers,
            arriving: Vec::new(),
            stalled: None,
            blocked: false,
            under_way: 0,
            idle,
            part_bytes_max,
        }
    }

    /// Does all the work of the van until it is closed and every other rank is as far: then MPI can be ended, which is
    /// left to the caller. `None` when it failed or was dropped without being closed.
    pub(crate) async fn run(mut self) -> Option<World> {
        let mut closed = self.shared.closed.subscribe();
        // The sender lives in `shared`.
        let closed =
            async move { closed.wait_for(Option::is_some).await.is_ok_and(|closed| matches!(*closed, Some(Ok(())))) };
        let closed = tokio::select! {
            biased;
            () = self.work() => false,
            closed = closed => closed,
        };
        if !closed {
            return None;
        }
        if let Err(failure) = self.leave().await {
            self.failed(&failure);
            return None;
        }
        self.world.take()
    }

    /// Turn after turn, until one fails.
    async fn work(&mut self) {
        loop {
            match self.turn() {
                Ok(worked) => self.pause(worked).await,
                Err(failure) => return self.failed(&failure),
            }
        }
    }

    /// Waits until every rank has come here. A rank that does not come keeps the others waiting, as everywhere in MPI,
    /// until the launcher ends the job; one that fails must not come here.
    async fn leave(&mut self) -> Result<(), Failure> {
        let (own, size) = (self.shared.rank, self.peers.len());
        // Rank 0 hears of everybody, and then tells everybody: nobody enters the end of MPI, which waits with a busy
        // core, before all can.
        for send in [own != 0, own == 0] {
            let others = if own == 0 { 1..size } else { 0..1 };
            for rank in others {
                self.requests.finish_word(rank, send)?;
            }
            while !self.requests.is_empty() {
                let worked = self.turn()?;
                self.pause(worked).await;
            }
        }
        Ok(())
    }

    async fn pause(&mut self, worked: bool) {
        if worked {
            self.idle.reset();
            return tokio::task::yield_now().await;
        }
        let busy = !self.requests.is_empty() || self.stalled.is_some() || self.blocked;
        match self.idle.pause(busy) {
            Pause::Spin => tokio::task::yield_now().await,
            Pause::Yield => {
                std::thread::yield_now();
                tokio::task::yield_now().await;
            }
            Pause::Sleep(duration) => {
                tokio::select! {
                    () = self.shared.woken() => {}
                    slept = self.idle.sleep(duration) => if let Err(error) = slept {
                        tracing::debug!(%error, "the timer of the MPI thread");
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    /// One look at everything. Returns whether anything happened.
    fn turn(&mut self) -> Result<bool, Failure> {
        let mut worked = false;
        if self.shared.take_bell() {
            worked = true;
            for rank in 0..self.peers.len() {
                if self.shared.take_flag(rank) {
                    self.send_queued(rank)?;
                }
            }
        }
        worked |= self.take_frames()?;
        worked |= self.complete()?;
        if !self.arriving.is_empty() {
            worked |= self.deliver_whole();
        }
        if self.shared.closing.load(Ordering::Acquire) {
            self.close()?;
        }
        Ok(worked)
    }

    /// Starts to send what is queued for a rank, as much as may be under way.
    fn send_queued(&mut self, rank: usize) -> Result<(), Failure> {
        let peer = &mut self.peers[rank];
        while peer.under_way < UNDER_WAY_MAX {
            match peer.queued.try_recv() {
                Ok(outgoing) => {
                    peer.under_way += 1;
                    self.under_way += 1;
                    self.requests.send(rank, outgoing)?;
                }
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    peer.drained = true;
                    break;
                }
            }
        }
        Ok(())
    }

    fn take_frames(&mut self) -> Result<bool, Failure> {
        let mut worked = false;
        if let Some((rank, header, parts)) = self.stalled.take() {
            worked = self.accept(rank, header, parts)?;
        }
        for _ in 0..FRAMES_PER_TURN {
            if self.stalled.is_some() || self.blocked {
                break;
            }
            let Some((rank, frame)) = self.requests.next_frame()? else { break };
            let (header, parts) =
                frame::decode(frame, self.part_bytes_max).map_err(|what| Failure::Protocol { rank, what })?;
            worked = true;
            self.accept(rank, header, parts)?;
        }
        Ok(worked)
    }

    /// Receives the rest of a message whose frame has arrived, or waits for room. Returns whether there was room.
    fn accept(&mut self, rank: usize, header: Header, parts: [Option<Bytes>; PARTS]) -> Result<bool, Failure> {
        let body_bytes = header.part_len.into_iter().fold(0_u64, u64::saturating_add);
        let reserved = match &self.inbox {
            Some(inbox) => match inbox.try_reserve(body_bytes) {
                Some(reserved) => reserved,
                None => {
                    self.stalled = Some((rank, header, parts));
                    return Ok(false);
                }
            },
            None => Reserved::nothing(),
        };
        let mut all = [const { Part::Here(Bytes::new()) }; PARTS];
        for ((part, here), len) in all.iter_mut().zip(parts).zip(header.part_len) {
            match here {
                Some(here) => *part = Part::Here(here),
                None if len == 0 => {}
                None => {
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    let buffer = Buffer::recycled(len);
                    *part = Part::Landing(self.requests.receive(rank, buffer)?);
                }
            }
        }
        let incoming = Incoming { header, parts: all, reserved };
        let peer = &mut self.peers[rank];
        if peer.incoming.is_empty() {
            if incoming.is_whole() {
                if let Some(incoming) = self.deliver(rank, incoming) {
                    self.peers[rank].incoming.push_back(incoming);
                    self.arriving.push(rank);
                }
                return Ok(true);
            }
            self.arriving.push(rank);
        }
        peer.incoming.push_back(incoming);
        Ok(true)
    }

    fn complete(&mut self) -> Result<bool, Failure> {
        let (peers, shared, under_way) = (&mut self.peers, &self.shared, &mut self.under_way);
        let count = self.requests.complete(|sending: &Sending| {
            let peer = &mut peers[sending.to];
            *under_way -= 1;
            peer.under_way -= 1;
            if peer.under_way + 1 == UNDER_WAY_MAX {
                // It was full: there may be more.
                shared.ring(sending.to);
            }
        })?;
        Ok(count > 0)
    }

    /// Delivers messages that are whole, each rank's in their order.
    fn deliver_whole(&mut self) -> bool {
        let mut worked = false;
        self.blocked = false;
        let mut index = 0;
        while index < self.arriving.len() {
            let rank = self.arriving[index];
            while !self.blocked && self.peers[rank].incoming.front().is_some_and(Incoming::is_whole) {
                let Some(incoming) = self.peers[rank].incoming.pop_front() else { break };
                match self.deliver(rank, incoming) {
                    None => worked = true,
                    Some(incoming) => self.peers[rank].incoming.push_front(incoming),
                }
            }
            if self.peers[rank].incoming.is_empty() {
                self.arriving.swap_remove(index);
            } else {
                index += 1;
            }
        }
        worked
    }

    /// Puts a whole message into the inbox; gives it back when there is no room in its queue.
    fn deliver(&mut self, rank: usize, incoming: Incoming) -> Option<Incoming> {
        let Some(inbox) = &self.inbox else { return None };
        let Incoming { header, parts, reserved } = incoming;
        let parts = parts.map(|part| match part {
            Part::Here(bytes) => bytes,
            Part::Landing(landing) => landing.take().unwrap_or_default().share(),
        });
        let event = VanEvent::Message { from: node_of(rank), message: Message::from_parts(header, parts) };
        match inbox.try_deliver_reserved(reserved, event) {
            Ok(()) => None,
            Err(Some((reserved, VanEvent::Message { message, .. }))) => {
                self.blocked = true;
                let parts = std::array::from_fn(|index| Part::Here(message.part(index).clone()));
                Some(Incoming { header, parts, reserved })
            }
            Err(_) => {
                // Nobody reads any more; the senders must not wait for it.
                self.inbox = None;
                None
            }
        }
    }

    /// Goes on with closing: everything queued is sent, and through.
    fn close(&mut self) -> Result<(), Failure> {
        if self.shared.closed.borrow().is_some() {
            return Ok(());
        }
        for rank in 0..self.peers.len() {
            if !self.peers[rank].drained {
                self.peers[rank].queued.close();
                self.send_queued(rank)?;
            }
        }
        if self.under_way == 0 && self.peers.iter().all(|peer| peer.drained) {
            // What arrives from now on is thrown away: this node does not speak any more, and its reader learns it.
            self.inbox = None;
            // Before anybody can know, and end the process.
            self.world.as_mut().map(World::begin_to_leave);
            self.shared.closed.send_replace(Some(Ok(())));
        }
        Ok(())
    }

    /// Says that it is over: to whoever sends, to whoever reads, and to whoever closes.
    fn failed(&mut self, failure: &Failure) {
        tracing::error!(%failure, "the MPI transport stopped");
        let reason = failure.to_string();
        self.shared.fail(reason.clone());
        if let Some(inbox) = self.inbox.take() {
            for node in (0..self.peers.len()).filter(|rank| *rank != self.shared.rank).map(node_of) {
                let reason = VanError::LinkLost { node, reason: reason.clone() };
                // The inbox ends right after, which says the same to a reader that is far behind.
                let _ = inbox.try_deliver_reserved(Reserved::nothing(), VanEvent::PeerDown { node, reason });
            }
        }
        let lost = VanError::LinkLost { node: node_of(self.shared.rank), reason };
        self.shared.closed.send_if_modified(|closed| {
            let open = closed.is_none();
            closed.get_or_insert(Err(lost));
            open
        });
    }
}

impl Incoming {
    fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Here(_) => true,
            Part::Landing(landing) => landing.is_complete(),
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(world) = &self.world
        {
            // The other ranks would wait for this one until somebody ends the job.
            world.abort();
        }
        let reason = "nobody drives the van any more".to_owned();
        self.shared.fail(reason.clone());
        let lost = VanError::LinkLost { node: node_of(self.shared.rank), reason };
        self.shared.closed.send_if_modified(|closed| closed.replace(closed.clone().unwrap_or(Err(lost))).is_none());
    }
}
