//! One rank as the checks see it.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use kv_core::Buffer;
use kv_core::cluster::NodeId;
use kv_core::van::{Endpoint, Inbox, InboxLimits, Van, VanError, VanEvent};
use kv_core::wire::{Kind, Message};

use super::{Harness, Signals};

/// Why a check failed.
#[derive(Debug)]
pub(super) struct Failure(pub(super) String);

impl From<VanError> for Failure {
    fn from(error: VanError) -> Self {
        Self(format!("the van answered: {error}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(format!("the suite itself failed: {error}"))
    }
}

impl From<tokio::task::JoinError> for Failure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self(format!("a task of the check failed: {error}"))
    }
}

macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::conformance::node::Failure(format!($($reason)+)));
        }
    };
}
pub(super) use ensure;

/// What a node is doing, for the report of a check that does not end.
#[derive(Clone, Default)]
pub(super) struct Step(Arc<Mutex<String>>);

impl Step {
    pub(super) fn set(&self, step: impl Into<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = step.into();
    }

    pub(super) fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Something that arrived.
#[derive(Debug)]
enum Event {
    Message { from: NodeId, message: Message },
    Down { node: NodeId, reason: String },
}

impl Event {
    fn message(self) -> Result<(NodeId, Message), Failure> {
        match self {
            Self::Message { from, message } => Ok((from, message)),
            Self::Down { node, reason } => Err(Failure(format!("node {node} was reported down: {reason}"))),
        }
    }
}

fn tag_of(message: &Message) -> u32 {
    message.header().clock
}

/// One rank: its van, its inbox, and what the checks keep asking for.
///
/// The check's number travels in the header's epoch and the purpose of a message in its clock, so that a message that
/// belongs to another check or step is set aside instead of being mistaken.
pub(super) struct Node {
    pub(super) rank: usize,
    /// The identities of all ranks.
    pub(super) peers: Vec<NodeId>,
    /// The endpoints of all ranks.
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) harness: Arc<dyn Harness>,
    pub(super) check: u32,
    pub(super) step: Step,
    /// Whether the check reckons with lost peers; else each is a failure.
    pub(super) downs_expected: bool,
    signals: Signals,
    van: Option<Arc<dyn Van>>,
    inbox: Inbox,
    early: VecDeque<Event>,
}

const BARRIER: u32 = u32::MAX;
const VERDICT: u32 = u32::MAX - 1;
const MARK: u32 = u32::MAX - 2;

impl Node {
    pub(super) fn new(
        rank: usize,
        (van, inbox): (Arc<dyn Van>, Inbox),
        harness: Arc<dyn Harness>,
        signals: Signals,
    ) -> Self {
        Self {
            rank,
            peers: Vec::new(),
            endpoints: Vec::new(),
            harness,
            check: 0,
            step: Step::default(),
            downs_expected: false,
            signals,
            van: Some(van),
            inbox,
            early: VecDeque::new(),
        }
    }

    /// Dies like a killed process: van and inbox are dropped.
    pub(super) fn die(&mut self) {
        self.van = None;
        self.inbox = Inbox::new(InboxLimits::default()).1;
        self.early.clear();
    }

    /// Takes the place of the dead node.
    pub(super) fn replace(&mut self, (van, inbox): (Arc<dyn Van>, Inbox)) {
        (self.van, self.inbox) = (Some(van), inbox);
    }

    pub(super) fn is_alive(&self) -> bool {
        self.van.is_some()
    }

    pub(super) fn van(&self) -> &Arc<dyn Van> {
        self.van.as_ref().expect("a check uses no dead node")
    }

    pub(super) fn size(&self) -> usize {
        self.endpoints.len()
    }

    /// All ranks but this one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size()).filter(move |&other| other != rank)
    }

    /// A message of this check.
    pub(super) fn message(&self, tag: u32, sequence: u64) -> Message {
        let check = self.check;
        Message::new(Kind::Push).with_header(|header| {
            header.epoch = check;
            header.clock = tag;
            header.sequence = sequence;
        })
    }

    pub(super) async fn send(&self, to: usize, message: Message) -> Result<(), Failure> {
        self.van().send(self.peers[to], message).await?;
        Ok(())
    }

    pub(super) fn raise(&self, event: &str, text: &str) -> Result<(), Failure> {
        Ok(self.signals.raise(&self.event_name(event), text)?)
    }

    /// Waits for another rank's `raise`, leaving the inbox alone.
    pub(super) fn raised(&self, event: &str) -> impl Future<Output = Result<String, Failure>> + use<> {
        let (signals, name) = (self.signals.clone(), self.event_name(event));
        self.step.set(format!("waiting for the event '{event}'"));
        async move { Ok(signals.wait(&name).await?) }
    }

    fn event_name(&self, event: &str) -> String {
        format!("check-{}-{event}", self.check)
    }

    /// The next message with this tag, from anybody.
    pub(super) async fn next(&mut self, tag: u32) -> Result<(NodeId, Message), Failure> {
        self.step.set(format!("waiting for a message with tag {tag}"));
        let wanted = move |event: &Event| matches!(event, Event::Message { message, .. } if tag_of(message) == tag);
        self.pick(wanted).await.and_then(Event::message)
    }

    /// The next message with this tag from the node of this rank; a failure when that is reported down before.
    pub(super) async fn next_from(&mut self, rank: usize, tag: u32) -> Result<Message, Failure> {
        self.step.set(format!("waiting for a message with tag {tag} of rank {rank}"));
        let peer = self.peers[rank];
        let wanted = move |event: &Event| match event {
            Event::Message { from, message } => *from == peer && tag_of(message) == tag,
            Event::Down { node, .. } => *node == peer,
        };
        self.pick(wanted).await.and_then(Event::message).map(|(_, message)| message)
    }

    /// The next message of this check, whatever it is; a lost peer is a failure.
    pub(super) async fn next_message(&mut self) -> Result<Message, Failure> {
        self.step.set("waiting for any message");
        self.pick(|_| true).await.and_then(Event::message).map(|(_, message)| message)
    }

    /// Waits until `lost` is reported down, and makes sure that this is said once and nothing comes after it.
    pub(super) async fn down_once(&mut self, lost: NodeId) -> Result<(), Failure> {
        self.step.set(format!("waiting to hear that node {lost} is down"));
        self.pick(move |event| matches!(event, Event::Down { node, .. } if *node == lost)).await?;
        // Whatever else there is to say comes before a message to itself: they share the inbox.
        self.send(self.rank, self.message(MARK, 0)).await?;
        let own = self.peers[self.rank];
        let wanted = move |event: &Event| match event {
            Event::Message { from, message } => *from == lost || (*from == own && tag_of(message) == MARK),
            Event::Down { node, .. } => *node == lost,
        };
        let (from, _) = self.pick(wanted).await?.message()?;
        ensure!(from == own, "a message of node {from} arrived after it was reported down");
        Ok(())
    }

    /// The first event of this check that is wanted; others wait for their turn.
    async fn pick(&mut self, wanted: impl Fn(&Event) -> bool) -> Result<Event, Failure> {
        let check = self.check;
        let wanted = |event: &Event| match event {
            Event::Message { message, .. } => message.header().epoch == check && wanted(event),
            Event::Down { .. } => wanted(event),
        };
        if let Some(at) = self.early.iter().position(wanted)
            && let Some(event) = self.early.remove(at)
        {
            return Ok(event);
        }
        loop {
            match self.arrived().await? {
                event if wanted(&event) => return Ok(event),
                // A leftover of an earlier check, such as a message whose sender gave up waiting.
                Event::Message { message, .. } if message.header().epoch < check => {}
                event => self.early.push_back(event),
            }
        }
    }

    async fn arrived(&mut self) -> Result<Event, Failure> {
        match self.inbox.recv().await {
            Some(VanEvent::Message { from, message }) => Ok(Event::Message { from, message }),
            Some(VanEvent::PeerDown { node, reason }) => {
                ensure!(self.downs_expected, "rank {} was told that node {node} is down: {reason}", self.rank);
                Ok(Event::Down { node, reason: reason.to_string() })
            }
            None => Err(Failure(format!("the inbox of rank {} ended", self.rank))),
        }
    }

    /// Ends when the inbox has ended, which it must once the van is closed.
    pub(super) async fn inbox_ended(&mut self) {
        self.step.set("waiting for the inbox to end");
        while self.inbox.recv().await.is_some() {}
    }

    /// Waits until all ranks are here.
    pub(super) async fn barrier(&mut self) -> Result<(), Failure> {
        let all: Vec<_> = (0..self.size()).collect();
        self.barrier_of(&all).await
    }

    /// Waits until these ranks are here; this one is among them.
    pub(super) async fn barrier_of(&mut self, ranks: &[usize]) -> Result<(), Failure> {
        let Some((&leader, followers)) = ranks.split_first() else { return Ok(()) };
        if self.rank != leader {
            self.send(leader, self.message(BARRIER, 0)).await?;
            return self.next_from(leader, BARRIER).await.map(drop);
        }
        for &rank in followers {
            self.next_from(rank, BARRIER).await?;
        }
        for &rank in followers {
            self.send(rank, self.message(BARRIER, 0)).await?;
        }
        Ok(())
    }

    /// Tells every rank what became of the check: the first failure of any.
    pub(super) async fn verdict(&mut self, own: Result<(), Failure>) -> Result<(), Failure> {
        let text = |own: Result<(), Failure>| own.err().map_or_else(String::new, |failure| failure.0);
        let mut all = text(own);
        if self.rank == 0 {
            for rank in self.others() {
                let theirs = self.next_from(rank, VERDICT).await?;
                if all.is_empty() {
                    all = String::from_utf8_lossy(theirs.part(0)).into_owned();
                }
            }
            for rank in self.others() {
                let message = self.message(VERDICT, 0).with_part(0, Bytes::from(all.clone()));
                self.send(rank, message).await?;
            }
        } else {
            self.send(0, self.message(VERDICT, 0).with_part(0, Bytes::from(all))).await?;
            all = String::from_utf8_lossy(self.next_from(0, VERDICT).await?.part(0)).into_owned();
        }
        if all.is_empty() { Ok(()) } else { Err(Failure(all)) }
    }
}

/// Bytes that only this seed and length give, in aligned memory.
pub(super) fn pattern(seed: u64, len: usize) -> Bytes {
    let mut buffer = Buffer::zeroed(len);
    fastrand::Rng::with_seed(seed).fill(buffer.bytes_mut());
    buffer.share()
}
