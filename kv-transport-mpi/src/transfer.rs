//! What goes in and out, one look at a time.
//!
//! ```text
//!   a turn:  queues of the van ──► sends under way
//!            frames that have arrived, while the inbox has room ──► receives under way for their parts
//!            what has completed: memory released, messages whole
//!            whole messages, in each sender's order ──► inbox
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use kv_core::Buffer;
use kv_core::van::{InboxSender, Outgoing, Reserved, VanEvent};
use kv_core::wire::{Header, Message, PARTS};
use tokio::sync::mpsc;

use crate::error::MpiError;
use crate::frame;
use crate::idle::Look;
use crate::requests::{Landing, Requests, Sending};
use crate::shared::{Shared, node_of};

/// Messages under way to one peer: enough to keep it busy, few enough to be looked through in every turn.
const UNDER_WAY_MAX: usize = 64;

/// Frames taken in one turn, so that none of the other steps waits for long.
const FRAMES_PER_TURN: usize = 64;

/// Everything that uses MPI while the van works. Behind a lock: a sender uses it where it stands, when nobody else does.
pub(crate) struct Transfer {
    requests: Requests,
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
    /// When something happened last.
    pub(crate) active: Instant,
    /// A sender failed; the next turn says so.
    failure: Option<Failure>,
    /// Nobody takes turns any more.
    over: bool,
}

/// One rank, as seen from here.
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

/// Why nothing can be carried any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error("this node's van was dropped")]
    Dropped,
    #[error("rank {rank} broke the protocol: {what}")]
    Protocol { rank: usize, what: String },
}

impl Peer {
    pub(crate) fn new(queued: mpsc::Receiver<Outgoing>) -> Self {
        Self { queued, under_way: 0, drained: false, incoming: VecDeque::new() }
    }
}

impl Transfer {
    pub(crate) fn new(requests: Requests, shared: Arc<Shared>, inbox: InboxSender, peers: Vec<Peer>) -> Self {
        Self {
            requests,
            shared,
            inbox: Some(inbox),
            peers,
            arriving: Vec::new(),
            stalled: None,
            blocked: false,
            under_way: 0,
            active: Instant::now(),
            failure: None,
            over: false,
        }
    }

    /// One look at everything. Returns whether anything happened.
    pub(crate) fn turn(&mut self) -> Result<bool, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut worked = false;
        if self.shared.take_bell() {
            for rank in 0..self.peers.len() {
                if self.shared.take_flag(rank) {
                    worked = true;
                    self.send_queued(rank)?;
                }
            }
        }
        worked |= self.take_frames()?;
        worked |= self.complete()?;
        if !self.arriving.is_empty() {
            worked |= self.deliver_whole();
        }
        if worked {
            self.active = Instant::now();
        }
        Ok(worked)
    }

    /// A turn of somebody who cannot deal with a failure.
    pub(crate) fn look(&mut self) -> Look {
        if self.over || self.failure.is_some() {
            return Look::Quiet;
        }
        match self.turn() {
            Ok(true) => Look::News,
            Ok(false) if self.is_busy() => Look::Busy,
            Ok(false) => Look::Quiet,
            Err(failure) => {
                self.failure = Some(failure);
                Look::Quiet
            }
        }
    }

    /// Starts to send what was just queued for a rank, in the thread that queued it.
    pub(crate) fn send_now(&mut self, rank: usize) {
        if self.over || self.failure.is_some() || !self.shared.take_flag(rank) {
            return;
        }
        self.active = Instant::now();
        if let Err(failure) = self.send_queued(rank) {
            self.failure = Some(failure);
        }
    }

    /// Whether something is under way that needs looking at.
    pub(crate) fn is_busy(&self) -> bool {
        !self.requests.is_empty() || self.stalled.is_some() || self.blocked
    }

    /// Takes nothing more into the queues. Returns whether everything that was queued is through.
    pub(crate) fn drain(&mut self) -> Result<bool, Failure> {
        for rank in 0..self.peers.len() {
            if !self.peers[rank].drained {
                self.peers[rank].queued.close();
                self.send_queued(rank)?;
            }
        }
        Ok(self.under_way == 0 && self.peers.iter().all(|peer| peer.drained))
    }

    /// What arrives from now on is thrown away, and whoever reads the inbox learns that it is over.
    pub(crate) fn end_inbox(&mut self) -> Option<InboxSender> {
        self.inbox.take()
    }

    /// Nobody takes turns any more.
    pub(crate) fn stop(&mut self) {
        self.over = true;
        self.inbox = None;
    }

    /// Sends to these ranks, or receives from them, the word that a rank is through.
    pub(crate) fn finish_words(&mut self, ranks: std::ops::Range<usize>, send: bool) -> Result<(), Failure> {
        for rank in ranks {
            self.requests.finish_word(rank, send)?;
        }
        Ok(())
    }

    pub(crate) fn ranks(&self) -> usize {
        self.peers.len()
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
                frame::decode(frame, self.shared.part_bytes_max).map_err(|what| Failure::Protocol { rank, what })?;
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
}

impl Incoming {
    fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Here(_) => true,
            Part::Landing(landing) => landing.is_complete(),
        })
    }
}
