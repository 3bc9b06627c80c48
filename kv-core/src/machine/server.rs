//! A server's decisions: which requests run, wait, or are refused, and what they change.
//!
//! Membership is not its business: whoever owns it says who the workers are ([`Server::set_workers`]), a cluster's
//! [`super::ServerNode`] or the `local` store.

mod waits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::Action;
use super::rank_set::RankSet;
use super::shard::{ChunkId, Shard};
use super::waiting::{Gather, Wait, WaitId, Waited, Waiting};
use super::window::{Arrival, ReceiveWindow};
use crate::cluster::{Member, NodeId, NodeName, Rank, Standing, WorkerLoss};
use crate::consistency::Consistency;
use crate::dtype::DType;
use crate::error::Rejection;
use crate::key::{Key, KeyId};
use crate::limits::{MESSAGE_VALUE_BYTES, OPEN_ROUNDS_MAX, TIMEOUT_DEFAULT, TIMEOUT_MAX};
use crate::updater::{Updater, UpdaterRegistry};
use crate::wire::{
    DataError, Entry, KeyMeta, Kind, Message, NodeStats, UpdaterSpec, decode_part, encode_part, entries_of,
};

/// Settings of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// The updaters it knows.
    pub updaters: Arc<UpdaterRegistry>,
    /// Keep replies until the worker has confirmed them, so that a repeated request is answered with the same bytes.
    /// Needed where messages can be lost.
    pub keep_replies: bool,
}

/// One single-threaded owner of a share of the keys.
pub struct Server {
    config: ServerConfig,
    shard: Shard,
    workers: HashMap<NodeId, WorkerState>,
    /// Workers whose contribution a round needs.
    required: RankSet,
    /// Workers that are needed and will never contribute again.
    lost: Vec<(Rank, NodeName, String)>,
    /// Why nobody will initialise keys any more, once rank 0 is gone.
    no_init: Option<NoInit>,
    waiting: Waiting,
    init_waiters: HashMap<KeyId, Vec<WaitId>>,
    pushes: u64,
    pulls: u64,
    refused: u64,
}

struct WorkerState {
    rank: Rank,
    live: bool,
    window: ReceiveWindow,
}

/// What became of the worker that initialises keys.
#[derive(Clone)]
enum NoInit {
    Left,
    Lost(NodeName, String),
}

/// What running a request came to.
enum Ran {
    Reply(Message),
    Waits,
}

impl From<DataError> for Rejection {
    fn from(error: DataError) -> Self {
        Self::Malformed(error.0)
    }
}

impl Server {
    /// A server without keys and without workers.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        Self {
            config,
            shard: Shard::new(),
            workers: HashMap::new(),
            required: RankSet::default(),
            lost: Vec::new(),
            no_init: None,
            waiting: Waiting::default(),
            init_waiters: HashMap::new(),
            pushes: 0,
            pulls: 0,
            refused: 0,
        }
    }

    /// What it holds and has done.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        NodeStats {
            keys: self.shard.keys(),
            value_bytes: self.shard.value_bytes(),
            rounds: self.shard.updates(),
            pushes: self.pushes,
            pulls: self.pulls,
            refused: self.refused,
            ..NodeStats::default()
        }
    }

    /// Takes over the workers' standing from a roster.
    pub fn set_workers<'a>(
        &mut self,
        loss: WorkerLoss,
        workers: impl Iterator<Item = &'a Member>,
        out: &mut Vec<Action>,
    ) {
        for member in workers {
            let rank = member.name.rank;
            let state = self.workers.entry(member.node).or_insert_with(|| {
                self.required.insert(rank);
                WorkerState { rank, live: true, window: ReceiveWindow::new() }
            });
            if !state.live || member.standing == Standing::Live {
                continue;
            }
            state.live = false;
            self.forget_waits_of(member.node);
            if rank == Rank(0) {
                let no_init = match &member.standing {
                    Standing::Lost(reason) => NoInit::Lost(member.name.clone(), reason.clone()),
                    Standing::Live | Standing::Left => NoInit::Left,
                };
                self.end_init_waits(no_init, out);
            }
            match (&member.standing, loss) {
                (Standing::Lost(reason), WorkerLoss::Fail) => {
                    self.lost.push((rank, member.name.clone(), reason.clone()));
                    self.fail_hopeless_waits(out);
                }
                _ => self.go_on_without(rank, out),
            }
        }
    }

    /// Uses an updater of this process; what an earlier one remembered of the values is forgotten.
    pub fn set_local_updater(&mut self, updater: Arc<dyn Updater>) {
        self.shard.set_local_updater(updater);
    }

    /// Whether this worker is out of every count.
    #[must_use]
    pub fn has_left(&self, node: NodeId) -> bool {
        self.workers.get(&node).is_some_and(|worker| !worker.live)
    }

    /// A request from a node arrived.
    pub fn handle(&mut self, now: Instant, from: NodeId, message: Message, out: &mut Vec<Action>) {
        let sequence = message.header().sequence;
        let worker = self.workers.get_mut(&from).filter(|worker| {
            // One that has left may ask again for what it was told before, and whether it has left.
            worker.live || message.kind() == Kind::Leave || worker.window.has_run(sequence)
        });
        let Some(worker) = worker else {
            self.refused += 1;
            if message.kind() != Kind::Reply {
                let reply = refusal(&Rejection::NotAMember).with_header(|header| header.sequence = sequence);
                out.push(Action::Send { to: from, message: reply });
            }
            return;
        };
        match worker.window.arrive(message) {
            Arrival::Run(message) => self.run_in_order(now, from, message, out),
            Arrival::Repeated(Some(reply)) => out.push(Action::Send { to: from, message: reply }),
            Arrival::Repeated(None) | Arrival::Early => {}
            Arrival::Dropped => self.refused += 1,
        }
    }

    /// Answers what has waited too long.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some(id) = self.waiting.expired(now) {
            let Some(wait) = self.waiting.get(id) else { break };
            let rejection = self.what_is_missing(id, wait, now.saturating_duration_since(wait.since));
            self.fail_wait(id, &rejection, out);
        }
    }

    /// When the next wait reaches its deadline.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.deadline()
    }

    fn run_in_order(&mut self, now: Instant, from: NodeId, message: Message, out: &mut Vec<Action>) {
        let mut next = Some(message);
        while let Some(message) = next {
            let sequence = message.header().sequence;
            let reply = match self.run(now, from, &message, out) {
                Ok(Ran::Reply(reply)) => Some(reply),
                Ok(Ran::Waits) => None,
                Err(rejection) => {
                    self.refused += 1;
                    Some(refusal(&rejection))
                }
            };
            if let Some(reply) = reply {
                self.reply(from, sequence, reply, out);
            }
            next = self.workers.get_mut(&from).and_then(|worker| worker.window.next_early());
        }
    }

    fn run(&mut self, now: Instant, from: NodeId, message: &Message, out: &mut Vec<Action>) -> Result<Ran, Rejection> {
        let Some(rank) = self.workers.get(&from).map(|worker| worker.rank) else { return Err(Rejection::NotAMember) };
        let asked = Asked { from, rank, sequence: message.header().sequence, now, timeout: timeout_of(message) };
        match message.kind() {
            Kind::Init => self.init(message, out),
            Kind::Push => self.push(&asked, message, out),
            Kind::Pull => self.pull(&asked, message),
            Kind::PushPull => {
                self.push_values(rank, message, out)?;
                self.pull(&asked, message)
            }
            Kind::Describe => self.describe(&asked, message),
            Kind::SetUpdater => self.set_updater(message),
            Kind::Leave => {
                self.leave(from, rank, out);
                Ok(Ran::Reply(Message::new(Kind::Reply)))
            }
            Kind::Control | Kind::Reply => Err(Rejection::Malformed("not a request to a server".to_owned())),
        }
    }

    fn init(&mut self, message: &Message, out: &mut Vec<Action>) -> Result<Ran, Rejection> {
        let metas: Vec<KeyMeta> = decode_part(message.part(1))?;
        let metas: HashMap<KeyId, Arc<KeyMeta>> =
            metas.into_iter().map(|meta| (meta.key.id(), Arc::new(meta))).collect();
        let entries = entries_of(message.part(0))?;
        check_total(&entries, message)?;
        let mut seen: HashSet<ChunkId> = HashSet::with_capacity(entries.len());
        for entry in &entries {
            let meta =
                metas.get(&entry.key).ok_or_else(|| Rejection::Malformed("entry without metadata".to_owned()))?;
            let whole = entry.bytes.is_multiple_of(meta.dtype.size() as u64) && entry.bytes <= meta.value_bytes()?;
            if !whole || entry.dtype != meta.dtype.code() {
                return Err(Rejection::Malformed(format!("a chunk of {} bytes of key {}", entry.bytes, meta.key)));
            }
            self.shard.check_create(meta, entry)?;
            if !seen.insert((entry.key, entry.chunk)) {
                return Err(Rejection::AlreadyInitialised(meta.key.clone()));
            }
        }
        let mut offset = 0;
        for entry in &entries {
            let end = offset + entry.bytes as usize;
            self.shard.create(&metas[&entry.key], entry, &message.part(3)[offset..end]);
            offset = end;
        }
        for key in entries.iter().filter(|entry| entry.chunk == 0).map(|entry| entry.key) {
            for id in self.init_waiters.remove(&key).unwrap_or_default() {
                self.one_less(id, out);
            }
        }
        Ok(Ran::Reply(Message::new(Kind::Reply)))
    }

    fn push(&mut self, asked: &Asked, message: &Message, out: &mut Vec<Action>) -> Result<Ran, Rejection> {
        // A worker far ahead of the others is acknowledged when they have caught up: its own window makes it wait.
        let ahead = self.push_values(asked.rank, message, out)?;
        let ahead: Vec<(ChunkId, u64)> = ahead
            .into_iter()
            .filter(|(id, round)| self.shard.chunk_mut(*id).is_some_and(|chunk| chunk.applied < *round))
            .collect();
        if ahead.is_empty() {
            return Ok(Ran::Reply(Message::new(Kind::Reply)));
        }
        let chunks: Vec<ChunkId> = ahead.iter().map(|(id, _)| *id).collect();
        let targets: Vec<_> = ahead.iter().enumerate().map(|(index, (id, round))| (*id, *round, index)).collect();
        self.wait(asked, &targets, Waited::Push(chunks))
    }

    /// Takes the contributions of a message, all or none. Returns the chunks on which this worker is too far ahead,
    /// each with the round that must be applied before it is acknowledged.
    fn push_values(
        &mut self,
        rank: Rank,
        message: &Message,
        out: &mut Vec<Action>,
    ) -> Result<Vec<(ChunkId, u64)>, Rejection> {
        let entries = entries_of(message.part(0))?;
        check_total(&entries, message)?;
        entries.iter().try_for_each(|entry| self.shard.check(entry))?;
        self.pushes += 1;
        let mut offset = 0;
        let mut ahead = Vec::new();
        let mut failed = None;
        for entry in &entries {
            let end = offset + entry.bytes as usize;
            let values = message.part(3).slice(offset..end);
            offset = end;
            let id = (entry.key, entry.chunk);
            let Some(chunk) = self.shard.chunk_mut(id) else { continue };
            match chunk.consistency() {
                Consistency::Async => {
                    if let Err(rejection) = self.shard.apply_now(id, values) {
                        failed = Some(rejection);
                    }
                }
                Consistency::Sync { deterministic } => {
                    let dtype = chunk.dtype();
                    let before = chunk.rounds.contribute(rank, dtype, values, deterministic);
                    if before >= OPEN_ROUNDS_MAX {
                        ahead.push((id, chunk.applied + (before + 1 - OPEN_ROUNDS_MAX) as u64));
                    }
                    self.close_rounds(id, out);
                }
            }
        }
        failed.map_or(Ok(ahead), Err)
    }

    fn pull(&mut self, asked: &Asked, message: &Message) -> Result<Ran, Rejection> {
        let entries = entries_of(message.part(0))?;
        entries.iter().try_for_each(|entry| self.shard.check(entry))?;
        let total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        if entries.len() > 1 && total > MESSAGE_VALUE_BYTES as u64 {
            return Err(Rejection::Malformed(format!("a pull of {total} bytes in one message")));
        }
        self.pulls += 1;
        let lens: Vec<_> = entries.iter().map(|entry| ((entry.key, entry.chunk), entry.bytes as usize)).collect();
        let mut gather = Gather::new(&lens);
        let mut targets = Vec::new();
        for (index, (id, _)) in lens.iter().enumerate() {
            let Some(chunk) = self.shard.chunk_mut(*id) else { continue };
            let round = match chunk.consistency() {
                Consistency::Async => 0,
                Consistency::Sync { .. } => chunk.contributed(asked.rank),
            };
            match &chunk.fault {
                Some((faulty, reason)) if *faulty == round => return Err(Rejection::Updater(reason.clone())),
                _ if chunk.applied >= round => gather.put(index, chunk.bytes(), || chunk.share()),
                _ => targets.push((*id, round, index)),
            }
        }
        if targets.is_empty() {
            return Ok(Ran::Reply(Message::new(Kind::Reply).with_part(3, gather.finish())));
        }
        self.wait(asked, &targets, Waited::Pull(gather))
    }

    fn describe(&mut self, asked: &Asked, message: &Message) -> Result<Ran, Rejection> {
        let (keys, wait): (Vec<Key>, bool) = decode_part(message.part(1))?;
        let missing: Vec<KeyId> = keys
            .iter()
            .map(Key::id)
            .filter(|&id| !self.shard.is_complete(id))
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        if missing.is_empty() || !wait {
            return Ok(Ran::Reply(self.description(&keys)?));
        }
        match &self.no_init {
            None => {}
            Some(NoInit::Left) => return Ok(Ran::Reply(self.description(&keys)?)),
            Some(NoInit::Lost(name, reason)) => {
                return Err(Rejection::WorkerLost { name: name.clone(), reason: reason.clone() });
            }
        }
        let id = self.waiting.next_id();
        for key in &missing {
            self.init_waiters.entry(*key).or_default().push(id);
        }
        self.waiting.insert(id, asked.wait(missing.len(), Waited::Describe(keys)));
        Ok(Ran::Waits)
    }

    fn description(&self, keys: &[Key]) -> Result<Message, Rejection> {
        let mut metas = Vec::with_capacity(keys.len());
        for key in keys {
            let meta = self.shard.meta(key.id());
            if let Some(meta) = meta
                && meta.key != *key
            {
                return Err(Rejection::KeyClash { key: key.clone(), existing: meta.key.clone() });
            }
            metas.push(meta.filter(|_| self.shard.is_complete(key.id())).map(|meta| (**meta).clone()));
        }
        Ok(Message::new(Kind::Reply).with_part(1, encode_part(&metas)?))
    }

    fn set_updater(&mut self, message: &Message) -> Result<Ran, Rejection> {
        let spec: UpdaterSpec = decode_part(message.part(1))?;
        if self.shard.updater_spec() != Some(&spec) {
            let updater = self.config.updaters.decode(&spec).map_err(Rejection::Updater)?;
            self.shard.set_updater(spec, updater);
        }
        Ok(Ran::Reply(Message::new(Kind::Reply)))
    }

    fn leave(&mut self, node: NodeId, rank: Rank, out: &mut Vec<Action>) {
        if let Some(worker) = self.workers.get_mut(&node)
            && std::mem::replace(&mut worker.live, false)
        {
            self.forget_waits_of(node);
            if rank == Rank(0) {
                self.end_init_waits(NoInit::Left, out);
            }
            self.go_on_without(rank, out);
        }
    }

    fn reply(&mut self, to: NodeId, sequence: u64, reply: Message, out: &mut Vec<Action>) {
        let reply = reply.with_header(|header| header.sequence = sequence);
        if self.config.keep_replies
            && let Some(worker) = self.workers.get_mut(&to)
        {
            worker.window.keep_reply(sequence, reply.clone());
        }
        out.push(Action::Send { to, message: reply });
    }
}

/// Who asked, and how long it may wait.
struct Asked {
    from: NodeId,
    rank: Rank,
    sequence: u64,
    now: Instant,
    timeout: Duration,
}

impl Asked {
    fn wait(&self, remaining: usize, what: Waited) -> Wait {
        Wait {
            worker: self.from,
            sequence: self.sequence,
            since: self.now,
            deadline: self.now + self.timeout,
            remaining,
            what,
        }
    }
}

fn timeout_of(message: &Message) -> Duration {
    match message.header().deadline_ms {
        0 => TIMEOUT_DEFAULT,
        ms => Duration::from_millis(u64::from(ms)).min(TIMEOUT_MAX),
    }
}

/// Whether the entries and the values that came with them fit.
fn check_total(entries: &[Entry], message: &Message) -> Result<(), Rejection> {
    let total = entries.iter().try_fold(0_u64, |total, entry| total.checked_add(entry.bytes));
    let found = message.part(3).len() as u64;
    if total != Some(found) {
        return Err(Rejection::Malformed(format!("entries announce {total:?} bytes of values, {found} came")));
    }
    match entries.iter().find(|entry| DType::from_code(entry.dtype).is_none()) {
        Some(entry) => Err(Rejection::Malformed(format!("element type code {}", entry.dtype))),
        None => Ok(()),
    }
}

/// A reply that says no.
fn refusal(rejection: &Rejection) -> Message {
    let part = encode_part(rejection).or_else(|error| encode_part(&Rejection::Malformed(error.0))).unwrap_or_default();
    Message::new(Kind::Reply).with_part(0, part).with_header(|header| header.status = 1)
}
