//! A worker's decisions: how a call becomes requests, and how replies become its result.
//!
//! Membership and barriers are not its business; see [`super::WorkerNode`]. The `local` store uses it directly.

mod start;

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::calls::{CallId, Op};
use super::known_keys::{KnownKeys, check_consistency};
use super::outgoing::Fill;
use super::server_link::{Expected, ServerLink};
use super::{Action, Outcome, Resend};
use crate::buffer::Buffer;
use crate::cluster::{NodeId, NodeName, Rank};
use crate::consistency::Consistency;
use crate::dtype::DType;
use crate::error::{Error, Rejection};
use crate::key::{Key, KeyId};
use crate::limits::{ANSWER_GRACE, TIMEOUT_MAX};
use crate::placement::SlotMap;
use crate::tensor::Tensor;
use crate::wire::{DataError, KeyMeta, Kind, Message, decode_part};

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Its rank.
    pub rank: Rank,
    /// Consistency of the keys it initialises and uses.
    pub consistency: Consistency,
    /// Chunk size of the job in bytes.
    pub chunk_bytes: u64,
    /// Which server owns which slot.
    pub slots: SlotMap,
    /// The servers by rank.
    pub servers: Vec<(NodeId, NodeName)>,
    /// Deadline of every wait.
    pub timeout: Duration,
    /// Whether requests are repeated.
    pub resend: Resend,
}

/// The machine.
pub struct Worker {
    config: WorkerConfig,
    links: Vec<ServerLink>,
    known: KnownKeys,
    calls: HashMap<CallId, Call>,
    /// Keys that an unfinished `init` or look-up is about; later calls on them wait in `queue`.
    busy: HashMap<KeyId, usize>,
    queue: Vec<(CallId, Op, i32)>,
    /// The last call has been submitted.
    leaving: bool,
    over: Option<Error>,
}

struct Call {
    stage: Stage,
    priority: i32,
    /// Requests not answered yet.
    remaining: usize,
    error: Option<Error>,
    results: Vec<Filling>,
    described: Vec<(Key, Option<KeyMeta>)>,
}

enum Stage {
    /// The last one.
    Final,
    /// Metadata of unknown keys is asked for; then the call itself.
    LookUp(Op),
    /// Rank 0 makes sure that none of the keys exists.
    InitCheck(Vec<(KeyMeta, Buffer)>),
    /// Rank 0 creates all chunks but the first of each key; the first makes the key usable, so it comes last.
    InitRest(Vec<(KeyMeta, Buffer)>),
    /// Rank 0 creates the first chunks.
    InitFirst(Vec<KeyMeta>),
    /// The others wait until rank 0 has done so.
    InitWait(Vec<KeyMeta>),
}

/// A result being put together.
struct Filling {
    dtype: DType,
    shape: Vec<u64>,
    buffer: Buffer,
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        Self::Protocol(error.0)
    }
}

impl Worker {
    /// A worker that knows no keys.
    #[must_use]
    pub fn new(mut config: WorkerConfig, now: Instant) -> Self {
        config.timeout = config.timeout.min(TIMEOUT_MAX);
        let servers = config.servers.clone().into_iter();
        let links = servers.map(|(node, name)| ServerLink::new(node, name, config.resend, now)).collect();
        Self {
            config,
            links,
            known: KnownKeys::default(),
            calls: HashMap::new(),
            busy: HashMap::new(),
            queue: Vec::new(),
            leaving: false,
            over: None,
        }
    }

    /// Starts a call. It ends with one [`Action::Complete`], at once or later. Calls on one key take effect in the
    /// order in which they are submitted; a higher `priority` goes first among calls on different keys. A new updater
    /// is a call on all keys. [`Op::Leave`] waits until every other call has ended, and later calls are refused.
    pub fn submit(&mut self, now: Instant, id: CallId, op: Op, priority: i32, out: &mut Vec<Action>) {
        let refused = self.over.clone().or_else(|| self.leaving.then_some(Error::Closed));
        if let Some(error) = refused {
            out.push(Action::Complete { call: id, result: Err(error) });
            return;
        }
        self.leaving = matches!(op, Op::Leave);
        self.enter(now, id, op, priority, out);
    }

    fn enter(&mut self, now: Instant, id: CallId, op: Op, priority: i32, out: &mut Vec<Action>) {
        if self.must_wait(&op) {
            self.mark_busy(&op, true);
            self.queue.push((id, op, priority));
            return;
        }
        if let Err(error) = self.start(now, id, op, priority, out) {
            out.push(Action::Complete { call: id, result: Err(error) });
        }
    }

    /// A message from a server arrived.
    pub fn handle(&mut self, now: Instant, from: NodeId, message: &Message, out: &mut Vec<Action>) {
        let Some(server) = self.links.iter().position(|link| link.node == from) else { return };
        if message.kind() != Kind::Reply {
            tracing::debug!(%from, "dropped a message that is not a reply");
            return;
        }
        let Some((id, expected)) = self.links[server].answered(now, message.header().sequence, out) else { return };
        let result = if message.header().status == 0 {
            self.take_reply(id, expected, message)
        } else {
            Err(match decode_part::<Rejection>(message.part(0)) {
                Ok(rejection) => rejection.into_error(|key| self.known.name(key)),
                Err(error) => error.into(),
            })
        };
        self.request_done(now, id, result, out);
    }

    /// A server is gone: what waits for it ends, and later calls that need it are refused.
    pub fn server_lost(&mut self, now: Instant, node: NodeId, reason: &str, out: &mut Vec<Action>) {
        let Some(link) = self.links.iter_mut().find(|link| link.node == node) else { return };
        if link.lost.is_some() {
            return;
        }
        link.lost = Some(reason.to_owned());
        let error = Error::ServerLost { name: link.name.clone(), reason: reason.to_owned() };
        for call in link.give_up() {
            self.request_done(now, call, Err(error.clone()), out);
        }
    }

    /// Ends every call, and every later one, with this error.
    pub fn fail_all(&mut self, error: &Error, out: &mut Vec<Action>) {
        self.over.get_or_insert_with(|| error.clone());
        let mut open: Vec<CallId> = self.calls.drain().map(|(id, _)| id).collect();
        open.extend(self.queue.drain(..).map(|(id, ..)| id));
        open.sort_unstable();
        out.extend(open.into_iter().map(|call| Action::Complete { call, result: Err(error.clone()) }));
        self.links.iter_mut().for_each(|link| drop(link.give_up()));
        self.busy.clear();
    }

    /// Repeats requests, and gives up on servers that do not answer.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Action>) {
        let limit = self.config.timeout + ANSWER_GRACE;
        for server in 0..self.links.len() {
            let link = &mut self.links[server];
            if let Some(waited) = link.handle_timeout(now, limit, out) {
                let error = Error::Timeout { what: format!("an answer from {}", link.name), waited };
                for call in link.give_up() {
                    self.request_done(now, call, Err(error.clone()), out);
                }
            }
        }
    }

    /// When [`Worker::handle_timeout`] wants to be called next.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let limit = self.config.timeout + ANSWER_GRACE;
        self.links.iter().filter_map(|link| link.deadline(limit)).min()
    }

    /// Whether a call would overtake another one that it must come after.
    fn must_wait(&self, op: &Op) -> bool {
        match op {
            // A server that has counted this worker out answers none of its waits any more.
            Op::Leave => !self.calls.is_empty() || !self.queue.is_empty(),
            Op::SetUpdater(_) => !self.busy.is_empty() || !self.queue.is_empty(),
            // Nothing on a key overtakes the init or look-up that the key waits for, or a call on all keys.
            _ => {
                self.queue.iter().any(|(_, queued, _)| queued.is_on_all_keys())
                    || op.keys().iter().any(|key| self.busy.contains_key(&key.id()))
            }
        }
    }

    fn take_reply(&mut self, id: CallId, expected: Expected, message: &Message) -> Result<(), Error> {
        let Some(call) = self.calls.get_mut(&id) else { return Ok(()) };
        match expected {
            Expected::Nothing => Ok(()),
            Expected::Values(fills) => {
                let values = message.part(3);
                let expected: u64 = fills.iter().map(|fill| fill.len).sum();
                if values.len() as u64 != expected {
                    let text = format!("{} bytes of values came, {expected} were asked for", values.len());
                    return Err(Error::Protocol(text));
                }
                let mut from = 0;
                for Fill { result, offset, len } in fills {
                    let (start, len) = (offset as usize, len as usize);
                    let target = call.results[result].buffer.bytes_mut();
                    target[start..start + len].copy_from_slice(&values[from..from + len]);
                    from += len;
                }
                Ok(())
            }
            Expected::Description(keys) => {
                let metas: Vec<Option<KeyMeta>> = decode_part(message.part(1))?;
                if metas.len() != keys.len() {
                    return Err(Error::Protocol(format!("{} descriptions for {} keys", metas.len(), keys.len())));
                }
                for (key, meta) in keys.into_iter().zip(metas) {
                    if let Some(meta) = &meta
                        && meta.key != key
                    {
                        return Err(Error::Protocol(format!("key {} described for key {key}", meta.key)));
                    }
                    call.described.push((key, meta));
                }
                Ok(())
            }
        }
    }

    fn request_done(&mut self, now: Instant, id: CallId, result: Result<(), Error>, out: &mut Vec<Action>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Err(error) = result {
            // The first error is the cause; the others are usually its echo.
            call.error.get_or_insert(error);
        }
        call.remaining = call.remaining.saturating_sub(1);
        if call.remaining == 0 {
            self.next_stage(now, id, out);
        }
    }

    fn next_stage(&mut self, now: Instant, id: CallId, out: &mut Vec<Action>) {
        let Some(call) = self.calls.remove(&id) else { return };
        let Call { stage, priority, error, results, described, .. } = call;
        let busy = match &stage {
            Stage::Final => Vec::new(),
            Stage::LookUp(op) => op.keys().into_iter().map(Key::id).collect(),
            Stage::InitCheck(entries) | Stage::InitRest(entries) => {
                entries.iter().map(|(meta, _)| meta.key.id()).collect()
            }
            Stage::InitFirst(metas) | Stage::InitWait(metas) => metas.iter().map(|meta| meta.key.id()).collect(),
        };
        let went_on = match error {
            Some(error) => Err(error),
            None => self.go_on(now, id, stage, priority, results, described, out),
        };
        match went_on {
            // The same keys stay busy for the call's next stage.
            Ok(Some(Continues)) => return,
            Ok(None) => {}
            Err(error) => out.push(Action::Complete { call: id, result: Err(error) }),
        }
        let frees_keys = !busy.is_empty();
        self.mark_keys_busy(busy.into_iter(), false);
        // Without any call left, what waits is the last one.
        if frees_keys || self.calls.is_empty() {
            self.run_queue(now, out);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a call")]
    fn go_on(
        &mut self,
        now: Instant,
        id: CallId,
        stage: Stage,
        priority: i32,
        results: Vec<Filling>,
        described: Vec<(Key, Option<KeyMeta>)>,
        out: &mut Vec<Action>,
    ) -> Result<Option<Continues>, Error> {
        match stage {
            Stage::Final => {
                let values = results.into_iter().map(Filling::finish).collect::<Result<Vec<_>, _>>()?;
                let outcome = if values.is_empty() { Outcome::Done } else { Outcome::Values(values) };
                out.push(Action::Complete { call: id, result: Ok(outcome) });
                Ok(None)
            }
            Stage::LookUp(op) => {
                for (key, meta) in described {
                    let meta = meta.ok_or(Error::NotInitialised { key })?;
                    check_consistency(&meta, self.config.consistency)?;
                    self.known.learn(meta, self.config.chunk_bytes)?;
                }
                self.start(now, id, op, priority, out).map(|()| None)
            }
            Stage::InitCheck(entries) => {
                if let Some((key, _)) = described.into_iter().find(|(_, meta)| meta.is_some()) {
                    return Err(Error::AlreadyInitialised { key });
                }
                let requests = self.init_requests(&entries, false)?;
                self.open_call(now, id, Stage::InitRest(entries), priority, Vec::new(), requests, out)?;
                Ok(Some(Continues))
            }
            Stage::InitRest(entries) => {
                let requests = self.init_requests(&entries, true)?;
                let metas = entries.into_iter().map(|(meta, _)| meta).collect();
                self.open_call(now, id, Stage::InitFirst(metas), priority, Vec::new(), requests, out)?;
                Ok(Some(Continues))
            }
            Stage::InitFirst(metas) => {
                for meta in metas {
                    self.known.learn(meta, self.config.chunk_bytes)?;
                }
                out.push(Action::Complete { call: id, result: Ok(Outcome::Done) });
                Ok(None)
            }
            Stage::InitWait(metas) => {
                let mut found: HashMap<Key, KeyMeta> =
                    described.into_iter().filter_map(|(key, meta)| Some((key, meta?))).collect();
                let mut disagreement = None;
                for meta in metas {
                    let Some(theirs) = found.remove(&meta.key) else {
                        return Err(Error::NotInitialised { key: meta.key });
                    };
                    // Not learnt: every call on it is to be refused, not only this one.
                    if let Err(error) = check_consistency(&theirs, self.config.consistency) {
                        disagreement.get_or_insert(error);
                        continue;
                    }
                    let known = self.known.learn(theirs, self.config.chunk_bytes)?;
                    if let Err(error) = known.check_agrees(&meta) {
                        disagreement.get_or_insert(error);
                    }
                }
                let result = disagreement.map_or(Ok(Outcome::Done), Err);
                out.push(Action::Complete { call: id, result });
                Ok(None)
            }
        }
    }

    fn mark_busy(&mut self, op: &Op, busy: bool) {
        let ids: Vec<KeyId> = op.keys().into_iter().map(Key::id).collect();
        self.mark_keys_busy(ids.into_iter(), busy);
    }

    fn mark_keys_busy(&mut self, ids: impl Iterator<Item = KeyId>, busy: bool) {
        for id in ids {
            let count = self.busy.entry(id).or_insert(0);
            *count = if busy { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.busy.remove(&id);
            }
        }
    }

    /// Submits what waited for keys again, in order.
    fn run_queue(&mut self, now: Instant, out: &mut Vec<Action>) {
        let queue = std::mem::take(&mut self.queue);
        for (_, op, _) in &queue {
            self.mark_busy(op, false);
        }
        for (id, op, priority) in queue {
            self.enter(now, id, op, priority, out);
        }
    }
}

/// The call has another stage.
struct Continues;

impl Filling {
    fn new(meta: &KeyMeta, bytes: u64) -> Result<Self, Error> {
        let len = usize::try_from(bytes).map_err(|_| Error::Limit {
            what: format!("key {} in this process", meta.key),
            limit: usize::MAX as u64,
            found: bytes,
        })?;
        Ok(Self { dtype: meta.dtype, shape: meta.shape.clone(), buffer: Buffer::recycled(len) })
    }

    fn finish(self) -> Result<Tensor, Error> {
        Tensor::from_buffer(self.dtype, self.shape, self.buffer)
    }
}
