//! The task that takes the turns, and what it does between them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kv_core::van::{Reserved, VanError, VanEvent};

use crate::idle::{IdlePolicy, Timer};
use crate::shared::{Shared, node_of};
use crate::transfer::{Failure, Transfer};
use crate::world::World;

/// Has to run for the van to do anything but send.
pub(crate) struct Engine {
    /// `None` once it was left.
    world: Option<World>,
    transfer: Arc<Mutex<Transfer>>,
    shared: Arc<Shared>,
    policy: IdlePolicy,
    timer: Timer,
    /// This thread has nothing else to do: it looks by itself, where otherwise a node's driver does.
    alone: bool,
}

impl Engine {
    pub(crate) fn new(
        world: World,
        transfer: Arc<Mutex<Transfer>>,
        shared: Arc<Shared>,
        policy: IdlePolicy,
        timer: Timer,
        alone: bool,
    ) -> Self {
        Self { world: Some(world), transfer, shared, policy, timer, alone }
    }

    /// Does all the work of the van until it is closed and every other rank is as far: then MPI can be ended, which is
    /// left to the caller. `None` when it failed or was dropped without being closed.
    pub(crate) async fn run(mut self) -> Option<World> {
        let worked = async {
            self.work().await?;
            self.leave().await
        };
        match worked.await {
            Ok(()) => self.world.take(),
            Err(failure) => {
                self.failed(&failure);
                None
            }
        }
    }

    /// Turn after turn, until the van is closed and everything queued is through.
    async fn work(&mut self) -> Result<(), Failure> {
        loop {
            let (worked, busy, through) = {
                let mut transfer = transfer(&self.transfer);
                let worked = transfer.turn()?;
                let through = self.shared.closing.load(Ordering::Acquire) && transfer.drain()?;
                (worked, transfer.is_busy(), through)
            };
            if self.shared.has_failed() {
                return Err(Failure::Dropped);
            }
            if through {
                transfer(&self.transfer).end_inbox();
                // Before anybody can know, and end the process.
                self.world.as_mut().map(World::begin_to_leave);
                self.shared.closed.send_replace(Some(Ok(())));
                return Ok(());
            }
            self.pause(worked, busy).await;
        }
    }

    /// Waits until every rank has come here. A rank that does not come keeps the others waiting, as everywhere in MPI,
    /// until the launcher ends the job; one that fails must not come here.
    async fn leave(&mut self) -> Result<(), Failure> {
        let (own, size) = (self.shared.rank, transfer(&self.transfer).ranks());
        // Rank 0 hears of everybody, and then tells everybody: nobody enters the end of MPI, which waits with a busy
        // core, before all can.
        for send in [own != 0, own == 0] {
            transfer(&self.transfer).finish_words(if own == 0 { 1..size } else { 0..1 }, send)?;
            loop {
                let (worked, busy) = {
                    let mut transfer = transfer(&self.transfer);
                    (transfer.turn()?, transfer.is_busy())
                };
                if !busy {
                    break;
                }
                // This can take as long as the slowest rank computes: there is no hurry.
                self.pause(worked, false).await;
            }
        }
        transfer(&self.transfer).stop();
        Ok(())
    }

    async fn pause(&mut self, worked: bool, busy: bool) {
        if worked || (self.alone && self.policy.look(|| transfer(&self.transfer).look())) {
            return tokio::task::yield_now().await;
        }
        let idle = transfer(&self.transfer).active.elapsed();
        // A node's driver looks by itself for a while; the timer stays out of its way.
        let driver = if self.alone { Duration::ZERO } else { self.policy.look_for.saturating_sub(idle) };
        let duration = self.policy.sleep(idle, busy).max(driver);
        tokio::select! {
            () = self.shared.woken() => {}
            slept = self.timer.sleep(duration) => if let Err(error) = slept {
                tracing::debug!(%error, "the timer of the MPI van");
                tokio::task::yield_now().await;
            }
        }
    }

    /// Says that it is over: to whoever sends, to whoever reads, and to whoever closes.
    fn failed(&mut self, failure: &Failure) {
        if !matches!(failure, Failure::Dropped) {
            tracing::error!(%failure, "the MPI transport stopped");
        }
        let reason = failure.to_string();
        let mut transfer = transfer(&self.transfer);
        if let Some(inbox) = transfer.end_inbox() {
            for node in (0..transfer.ranks()).filter(|rank| *rank != self.shared.rank).map(node_of) {
                let reason = VanError::LinkLost { node, reason: reason.clone() };
                // The inbox ends right after, which says the same to a reader that is far behind.
                let _ = inbox.try_deliver_reserved(Reserved::nothing(), VanEvent::PeerDown { node, reason });
            }
        }
        drop(transfer);
        self.shared.fail(reason);
    }
}

pub(crate) fn transfer(transfer: &Mutex<Transfer>) -> MutexGuard<'_, Transfer> {
    // After a panic the engine ends the job.
    transfer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(world) = &self.world
        {
            // The other ranks would wait for this one until somebody ends the job.
            world.abort();
        }
        transfer(&self.transfer).stop();
        self.shared.fail("nobody drives the van any more".to_owned());
    }
}
