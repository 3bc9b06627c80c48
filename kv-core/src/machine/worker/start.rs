//! How a call becomes requests.

use std::time::Instant;

use bytes::Bytes;

use super::super::Action;
use super::super::calls::{CallId, Op, Value};
use super::super::known_keys::check_init;
use super::super::outgoing::{Batches, Fill, describe_messages};
use super::super::server_link::{Expected, Prepared};
use super::{Call, Filling, Stage, Worker};
use crate::buffer::Buffer;
use crate::cluster::Rank;
use crate::dtype::DType;
use crate::error::Error;
use crate::key::{Key, KeyId};
use crate::placement::Chunks;
use crate::tensor::Tensor;
use crate::wire::{KeyMeta, Kind, Message, UpdaterSpec, encode_part};

impl Worker {
    pub(super) fn start(
        &mut self,
        now: Instant,
        id: CallId,
        op: Op,
        priority: i32,
        out: &mut Vec<Action>,
    ) -> Result<(), Error> {
        if let Op::Init(entries) = op {
            return self.start_init(now, id, entries, priority, out);
        }
        let mut unknown: Vec<Key> = Vec::new();
        for key in op.keys() {
            if self.known.find(key)?.is_none() {
                unknown.push(key.clone());
            }
        }
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            let requests = self.describe(&unknown, false)?;
            self.mark_busy(&op, true);
            return self.open_call(now, id, Stage::LookUp(op), priority, Vec::new(), requests, out);
        }
        match op {
            Op::Push(entries) => self.start_push(now, id, Kind::Push, &entries, priority, out),
            Op::PushPull(entries) => self.start_push(now, id, Kind::PushPull, &entries, priority, out),
            Op::Pull(keys) => self.start_pull(now, id, &keys, priority, out),
            Op::SetUpdater(spec) => self.start_on_all(now, id, Kind::SetUpdater, Some(&spec), out),
            Op::Leave => self.start_on_all(now, id, Kind::Leave, None, out),
            Op::Init(_) => Ok(()),
        }
    }

    pub(super) fn start_init(
        &mut self,
        now: Instant,
        id: CallId,
        entries: Vec<(Key, Tensor)>,
        priority: i32,
        out: &mut Vec<Action>,
    ) -> Result<(), Error> {
        let consistency = self.config.consistency;
        let split = |(key, tensor): (Key, Tensor)| {
            let meta = KeyMeta { key, dtype: tensor.dtype(), shape: tensor.shape().to_vec(), consistency };
            (meta, tensor.into_buffer())
        };
        let entries: Vec<(KeyMeta, Buffer)> = entries.into_iter().map(split).collect();
        let metas: Vec<KeyMeta> = entries.iter().map(|(meta, _)| meta.clone()).collect();
        check_init(&metas, self.config.chunk_bytes)?;
        for meta in &metas {
            if self.known.find(&meta.key)?.is_some() {
                return Err(Error::AlreadyInitialised { key: meta.key.clone() });
            }
        }
        let first = self.config.rank == Rank(0);
        let keys: Vec<Key> = metas.iter().map(|meta| meta.key.clone()).collect();
        let requests = self.describe(&keys, !first)?;
        self.mark_keys_busy(keys.iter().map(Key::id), true);
        let stage = if first { Stage::InitCheck(entries) } else { Stage::InitWait(metas) };
        self.open_call(now, id, stage, priority, Vec::new(), requests, out)
    }

    pub(super) fn start_push(
        &mut self,
        now: Instant,
        id: CallId,
        kind: Kind,
        entries: &[(Key, Value)],
        priority: i32,
        out: &mut Vec<Action>,
    ) -> Result<(), Error> {
        let mut batches = Batches::new(kind, self.links.len(), self.config.chunk_bytes);
        let mut results = Vec::new();
        for (index, (key, value)) in entries.iter().enumerate() {
            let known = self.known.find(key)?.ok_or_else(|| Error::NotInitialised { key: key.clone() })?;
            known.check(value)?;
            let values = value.buffer.share();
            let place = (key.id(), known.meta.dtype);
            self.add_chunks(&mut batches, place, index, known.chunks, 0..known.count, Some(&values), None)?;
            if kind == Kind::PushPull {
                results.push(Filling::new(&known.meta, known.bytes)?);
            }
        }
        let requests = batches.finish()?;
        self.open_call(now, id, Stage::Final, priority, results, requests, out)
    }

    pub(super) fn start_pull(
        &mut self,
        now: Instant,
        id: CallId,
        keys: &[Key],
        priority: i32,
        out: &mut Vec<Action>,
    ) -> Result<(), Error> {
        let mut batches = Batches::new(Kind::Pull, self.links.len(), self.config.chunk_bytes);
        let mut results = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            let known = self.known.find(key)?.ok_or_else(|| Error::NotInitialised { key: key.clone() })?;
            let place = (key.id(), known.meta.dtype);
            self.add_chunks(&mut batches, place, index, known.chunks, 0..known.count, None, None)?;
            results.push(Filling::new(&known.meta, known.bytes)?);
        }
        let requests = batches.finish()?;
        self.open_call(now, id, Stage::Final, priority, results, requests, out)
    }

    pub(super) fn start_on_all(
        &mut self,
        now: Instant,
        id: CallId,
        kind: Kind,
        spec: Option<&UpdaterSpec>,
        out: &mut Vec<Action>,
    ) -> Result<(), Error> {
        let mut message = Message::new(kind);
        if let Some(spec) = spec {
            message = message.with_part(1, encode_part(spec)?);
        }
        let prepare = || Prepared { message: message.clone(), keys: Vec::new(), expected: Expected::Nothing };
        let requests = (0..self.links.len()).map(|server| (server, prepare())).collect();
        self.open_call(now, id, Stage::Final, 0, Vec::new(), requests, out)
    }

    #[allow(clippy::too_many_arguments, reason = "one place that adds chunks for init, push and pull")]
    pub(super) fn add_chunks(
        &self,
        batches: &mut Batches,
        (key, dtype): (KeyId, DType),
        result: usize,
        chunks: Chunks,
        numbers: std::ops::Range<u32>,
        values: Option<&Bytes>,
        meta: Option<&KeyMeta>,
    ) -> Result<(), Error> {
        for chunk in numbers {
            let range = chunks.range(chunk);
            let fill = Fill { result, offset: range.start, len: range.end - range.start };
            let values = values.map(|values| values.slice(range.start as usize..range.end as usize));
            let server = usize::from(self.config.slots.owner(key, chunk).0);
            batches.add(server, (key, chunk, dtype), fill, values, meta)?;
        }
        Ok(())
    }

    /// Questions about keys, to the servers where each begins.
    pub(super) fn describe(&self, keys: &[Key], wait: bool) -> Result<Vec<(usize, Prepared)>, Error> {
        let mut by_server: Vec<Vec<Key>> = vec![Vec::new(); self.links.len()];
        for key in keys {
            by_server[usize::from(self.config.slots.owner(key.id(), 0).0)].push(key.clone());
        }
        let mut requests = Vec::new();
        for (server, keys) in by_server.iter().enumerate() {
            requests.extend(describe_messages(keys, wait)?.into_iter().map(|prepared| (server, prepared)));
        }
        Ok(requests)
    }

    /// Sends a call's requests; a call without any is complete.
    #[allow(clippy::too_many_arguments, reason = "the fields of a call")]
    pub(super) fn open_call(
        &mut self,
        now: Instant,
        id: CallId,
        stage: Stage,
        priority: i32,
        results: Vec<Filling>,
        requests: Vec<(usize, Prepared)>,
        out: &mut Vec<Action>,
    ) -> Result<(), Error> {
        let lost = requests
            .iter()
            .map(|(server, _)| &self.links[*server])
            .find_map(|link| link.lost.clone().map(|reason| Error::ServerLost { name: link.name.clone(), reason }));
        let error = lost.clone();
        let remaining = if lost.is_some() { 0 } else { requests.len() };
        let call = Call { stage, priority, remaining, error, results, described: Vec::new() };
        self.calls.insert(id, call);
        if remaining == 0 {
            self.next_stage(now, id, out);
            return Ok(());
        }
        let deadline_ms = u32::try_from(self.config.timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        for (server, mut prepared) in requests {
            prepared.message = prepared.message.with_header(|header| header.deadline_ms = deadline_ms);
            self.links[server].queue(now, id, priority, prepared, out);
        }
        Ok(())
    }

    /// The requests that create the first chunks of these keys, or all the others.
    pub(super) fn init_requests(
        &self,
        entries: &[(KeyMeta, Buffer)],
        first: bool,
    ) -> Result<Vec<(usize, Prepared)>, Error> {
        let mut batches = Batches::new(Kind::Init, self.links.len(), self.config.chunk_bytes);
        for (index, (meta, buffer)) in entries.iter().enumerate() {
            let chunks = Chunks::new(buffer.len() as u64, self.config.chunk_bytes);
            let numbers = if first { 0..1 } else { 1..chunks.count().unwrap_or(1) };
            let values = buffer.share();
            self.add_chunks(
                &mut batches,
                (meta.key.id(), meta.dtype),
                index,
                chunks,
                numbers,
                Some(&values),
                Some(meta),
            )?;
        }
        Ok(batches.finish()?)
    }
}
