//! A van that loses, doubles, delays and reorders messages, by a seed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use kv_core::cluster::NodeId;
use kv_core::van::{Capability, Endpoint, TrySendError, Van, VanError};
use kv_core::wire::Message;
use tokio::task::JoinSet;

/// How often a [`FaultyVan`] does what. Rates are probabilities per message, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Seed of all decisions.
    pub seed: u64,
    /// The message never arrives.
    pub drop: f64,
    /// The message arrives twice.
    pub duplicate: f64,
    /// The message arrives after the next one to the same peer.
    pub reorder: f64,
    /// The message arrives later, by up to `delay_max`.
    pub delay: f64,
    /// Longest delay.
    pub delay_max: Duration,
}

impl Faults {
    /// No faults at all: the van behaves like the one inside.
    #[must_use]
    pub fn none(seed: u64) -> Self {
        Self { seed, drop: 0.0, duplicate: 0.0, reorder: 0.0, delay: 0.0, delay_max: Duration::from_millis(20) }
    }

    fn any(&self) -> bool {
        [self.drop, self.duplicate, self.reorder, self.delay].into_iter().any(|rate| rate > 0.0)
    }
}

/// How many messages met which fate so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Passed on as they came.
    pub passed: u64,
    /// Dropped.
    pub dropped: u64,
    /// Passed on twice.
    pub duplicated: u64,
    /// Held back until the next message to the same peer.
    pub reordered: u64,
    /// Delayed.
    pub delayed: u64,
}

/// Wraps any van and mistreats what is sent through it. What arrives, lost peers included, is left alone.
///
/// The decisions depend on the seed and on the order of the send calls only: a single-threaded program under paused
/// time meets the same faults in every run.
///
/// Messages held back for reordering or delay are passed on by [`Van::close`], and lost when the van is dropped.
pub struct FaultyVan {
    inner: Arc<dyn Van>,
    faults: Faults,
    state: Mutex<State>,
}

struct State {
    rng: fastrand::Rng,
    counts: FaultCounts,
    held: HashMap<NodeId, Message>,
    delayed: JoinSet<()>,
}

/// Messages that may be delayed at once; further ones are passed on in time.
const DELAYED_MAX: usize = 1024;

impl FaultyVan {
    /// A van that treats messages according to `faults` before it hands them to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Van>, faults: Faults) -> Self {
        let state = State {
            rng: fastrand::Rng::with_seed(faults.seed),
            counts: FaultCounts::default(),
            held: HashMap::new(),
            delayed: JoinSet::new(),
        };
        Self { inner, faults, state: Mutex::new(state) }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while holding this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a message; returns what is to be passed on now, in order.
    fn mistreat(&self, to: NodeId, message: Message) -> Vec<Message> {
        let mut state = self.state();
        let state = &mut *state;
        while state.delayed.try_join_next().is_some() {}
        // Every message takes the same number of rolls, so that one rate does not change what another one meets.
        let [drop, duplicate, reorder, delay] = std::array::from_fn(|_| state.rng.f64());
        let delay_for = self.faults.delay_max.mul_f64(state.rng.f64());
        let counts = &mut state.counts;
        let mut now = Vec::with_capacity(2);
        if drop < self.faults.drop {
            counts.dropped += 1;
        } else if delay < self.faults.delay && state.delayed.len() < DELAYED_MAX {
            counts.delayed += 1;
            let inner = Arc::clone(&self.inner);
            state.delayed.spawn(async move {
                tokio::time::sleep(delay_for).await;
                // The peer may be gone by now: then the message is lost, as on any network.
                let _ = inner.send(to, message).await;
            });
        } else if reorder < self.faults.reorder && !state.held.contains_key(&to) {
            counts.reordered += 1;
            state.held.insert(to, message);
            return now;
        } else if duplicate < self.faults.duplicate {
            counts.duplicated += 1;
            now.extend([message.clone(), message]);
        } else {
            counts.passed += 1;
            now.push(message);
        }
        now.extend(state.held.remove(&to));
        now
    }
}

#[async_trait]
impl Van for FaultyVan {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn endpoint(&self) -> &Endpoint {
        self.inner.endpoint()
    }

    fn capability(&self) -> Capability {
        let inner = self.inner.capability();
        Capability { reliable: inner.reliable && !self.faults.any(), ..inner }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<NodeId, VanError> {
        self.inner.connect(endpoint).await
    }

    async fn send(&self, to: NodeId, message: Message) -> Result<(), VanError> {
        for message in self.mistreat(to, message) {
            self.inner.send(to, message).await?;
        }
        Ok(())
    }

    fn try_send(&self, to: NodeId, message: Message) -> Result<(), TrySendError> {
        let mut now = self.mistreat(to, message.clone()).into_iter();
        match now.next().map(|first| self.inner.try_send(to, first)) {
            None | Some(Ok(())) => {}
            // The caller gets its own message back, whichever one was in front of it.
            Some(Err(TrySendError::Full(_))) => return Err(TrySendError::Full(message)),
            Some(Err(failed)) => return Err(failed),
        }
        for message in now {
            // One that was held back finds the link full: it is lost, which this van may do.
            let _ = self.inner.try_send(to, message);
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), VanError> {
        let (held, mut delayed) = {
            let mut state = self.state();
            (std::mem::take(&mut state.held), std::mem::take(&mut state.delayed))
        };
        for (to, message) in held {
            let _ = self.inner.send(to, message).await;
        }
        while delayed.join_next().await.is_some() {}
        self.inner.close().await
    }
}
