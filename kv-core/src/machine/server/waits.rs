//! Requests that wait at a server: for a round, for the others to catch up, or for a key to be initialised.

use std::time::Duration;

use super::super::Action;
use super::super::shard::ChunkId;
use super::super::waiting::{Wait, WaitId, Waited};
use super::{Asked, NoInit, Ran, Server, refusal};
use crate::cluster::{NodeId, Rank};
use crate::error::Rejection;
use crate::key::Key;
use crate::wire::{Kind, Message};

impl Server {
    /// Nobody will initialise keys any more: whoever waits for one hears so at once.
    pub(super) fn end_init_waits(&mut self, no_init: NoInit, out: &mut Vec<Action>) {
        for id in self.waiting.ids() {
            let Some(Wait { what: Waited::Describe(keys), .. }) = self.waiting.get(id) else { continue };
            match &no_init {
                NoInit::Lost(name, reason) => {
                    let rejection = Rejection::WorkerLost { name: name.clone(), reason: reason.clone() };
                    self.fail_wait(id, &rejection, out);
                }
                NoInit::Left => {
                    let reply = self.description(keys).unwrap_or_else(|rejection| refusal(&rejection));
                    if let Some(wait) = self.drop_wait(id) {
                        self.reply(wait.worker, wait.sequence, reply, out);
                    }
                }
            }
        }
        self.no_init = Some(no_init);
    }

    /// Parks a request on chunks, unless a lost worker makes it hopeless.
    pub(super) fn wait(
        &mut self,
        asked: &Asked,
        targets: &[(ChunkId, u64, usize)],
        what: Waited,
    ) -> Result<Ran, Rejection> {
        for (id, round, _) in targets {
            if let Some(rejection) = self.hopeless(*id, *round) {
                return Err(rejection);
            }
        }
        let wait = self.waiting.next_id();
        for (id, round, index) in targets {
            if let Some(chunk) = self.shard.chunk_mut(*id) {
                chunk.waiters.push((*round, wait, *index));
            }
        }
        self.waiting.insert(wait, asked.wait(targets.len(), what));
        Ok(Ran::Waits)
    }

    /// Applies every complete round of the chunk, one at a time, and answers those who waited for exactly that one.
    pub(super) fn close_rounds(&mut self, id: ChunkId, out: &mut Vec<Action>) {
        while self.shard.close_round(id, &self.required) {
            let Some(chunk) = self.shard.chunk_mut(id) else { return };
            if chunk.waiters.is_empty() {
                continue;
            }
            let applied = chunk.applied;
            let (ready, still) =
                std::mem::take(&mut chunk.waiters).into_iter().partition(|(round, ..)| *round <= applied);
            chunk.waiters = still;
            let fault = chunk.fault.clone().filter(|(round, _)| *round == applied);
            let ready: Vec<(u64, WaitId, usize)> = ready;
            for (_, wait, index) in ready {
                let Some(chunk) = self.shard.chunk_mut(id) else { return };
                if let Some(Wait { what: Waited::Pull(gather), .. }) = self.waiting.get_mut(wait) {
                    gather.put(index, chunk.bytes(), || chunk.share());
                    if let Some((_, reason)) = &fault {
                        self.fail_wait(wait, &Rejection::Updater(reason.clone()), out);
                        continue;
                    }
                }
                self.one_less(wait, out);
            }
        }
    }

    /// One of the things a request waits for has come; answers it when that was the last.
    pub(super) fn one_less(&mut self, id: WaitId, out: &mut Vec<Action>) {
        let Some(wait) = self.waiting.get_mut(id) else { return };
        wait.remaining -= 1;
        if wait.remaining > 0 {
            return;
        }
        let Some(wait) = self.waiting.remove(id) else { return };
        let reply = match wait.what {
            Waited::Pull(gather) => Message::new(Kind::Reply).with_part(3, gather.finish()),
            Waited::Push(_) => Message::new(Kind::Reply),
            Waited::Describe(keys) => self.description(&keys).unwrap_or_else(|rejection| refusal(&rejection)),
        };
        self.reply(wait.worker, wait.sequence, reply, out);
    }

    pub(super) fn fail_wait(&mut self, id: WaitId, rejection: &Rejection, out: &mut Vec<Action>) {
        if let Some(wait) = self.drop_wait(id) {
            self.refused += 1;
            self.reply(wait.worker, wait.sequence, refusal(rejection), out);
        }
    }

    pub(super) fn drop_wait(&mut self, id: WaitId) -> Option<Wait> {
        let wait = self.waiting.remove(id)?;
        for chunk in wait.chunks() {
            if let Some(chunk) = self.shard.chunk_mut(chunk) {
                chunk.waiters.retain(|(_, waiter, _)| *waiter != id);
            }
        }
        if let Waited::Describe(keys) = &wait.what {
            for key in keys.iter().map(Key::id) {
                if let Some(waiters) = self.init_waiters.get_mut(&key) {
                    waiters.retain(|waiter| *waiter != id);
                    if waiters.is_empty() {
                        self.init_waiters.remove(&key);
                    }
                }
            }
        }
        Some(wait)
    }

    pub(super) fn forget_waits_of(&mut self, node: NodeId) {
        for id in self.waiting.ids() {
            if self.waiting.get(id).is_some_and(|wait| wait.worker == node) {
                self.drop_wait(id);
            }
        }
    }

    pub(super) fn go_on_without(&mut self, rank: Rank, out: &mut Vec<Action>) {
        self.required.remove(rank);
        let mut open: Vec<ChunkId> = self.shard.chunks_mut().map(|(id, _)| id).collect();
        // Hash order must not show in what is sent.
        open.sort_unstable();
        for id in open {
            self.close_rounds(id, out);
        }
    }

    pub(super) fn fail_hopeless_waits(&mut self, out: &mut Vec<Action>) {
        for id in self.waiting.ids() {
            let Some(wait) = self.waiting.get(id) else { continue };
            let rejection = wait.chunks().into_iter().find_map(|chunk| {
                let (round, ..) = *self.shard.chunk_mut(chunk)?.waiters.iter().find(|(_, waiter, _)| *waiter == id)?;
                self.hopeless(chunk, round)
            });
            if let Some(rejection) = rejection {
                self.fail_wait(id, &rejection, out);
            }
        }
    }

    /// Why this round will never be applied, if it will not.
    pub(super) fn hopeless(&mut self, id: ChunkId, round: u64) -> Option<Rejection> {
        let chunk = self.shard.chunk_mut(id)?;
        self.lost
            .iter()
            .find(|(rank, ..)| chunk.contributed(*rank) < round)
            .map(|(_, name, reason)| Rejection::WorkerLost { name: name.clone(), reason: reason.clone() })
    }

    pub(super) fn what_is_missing(&self, id: WaitId, wait: &Wait, waited: Duration) -> Rejection {
        if let Waited::Describe(keys) = &wait.what {
            let key = keys.iter().find(|key| !self.shard.is_complete(key.id()));
            return Rejection::InitIncomplete { key: key.cloned().unwrap_or(Key::Int(0)), waited };
        }
        let stuck = wait.chunks().into_iter().find_map(|chunk_id| {
            let chunk = self.shard.chunk(chunk_id)?;
            chunk.waiters.iter().any(|(_, waiter, _)| *waiter == id).then_some((chunk_id, chunk))
        });
        match stuck {
            Some(((key, _), chunk)) => Rejection::RoundIncomplete {
                key,
                round: chunk.applied + 1,
                missing: chunk.rounds.missing(&self.required),
                waited,
            },
            None => Rejection::Malformed("a wait without anything to wait for".to_owned()),
        }
    }
}
