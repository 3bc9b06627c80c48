//! The store for async code; the blocking one is a thin layer on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kv_core::driver::LocalStore;
use kv_core::machine::{Op, Outcome};
use kv_core::updater::{Slice, SliceMut, State, Step, Updater};
use kv_core::{AsTensor, Element, Error, Key, Tensor};
use kv_optim::Optimizer;

use super::lists;
use crate::node;
use crate::pending::{Pending, Started, nothing, tensor, tensors};
use crate::session::Session;

/// A [`KvStore`](crate::KvStore) for async code: the same store, the same calls, awaited instead of blocking.
///
/// Any runtime will do; the store's own thread does its I/O. A call awaits while the window of unfinished calls is full
/// and gives a [`Pending`] that can be awaited in turn.
///
/// # Cancel safety
/// A dropped future has started its whole call or nothing; a call that has started goes on.
#[derive(Clone)]
pub struct AsyncKvStore {
    shared: Arc<Shared>,
    priority: i32,
}

struct Shared {
    name: String,
    backend: Backend,
    barrier_before_exit: AtomicBool,
    closed: AtomicBool,
}

enum Backend {
    Local(Box<Mutex<LocalStore>>),
    Cluster(Session),
}

impl AsyncKvStore {
    pub(crate) fn local(name: String) -> Self {
        let store = LocalStore::new(Arc::new(node::updaters()));
        Self::new(name, Backend::Local(Box::new(Mutex::new(store))))
    }

    pub(crate) fn cluster(name: String, session: Session) -> Self {
        Self::new(name, Backend::Cluster(session))
    }

    fn new(name: String, backend: Backend) -> Self {
        let (barrier_before_exit, closed) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { shared: Arc::new(Shared { name, backend, barrier_before_exit, closed }), priority: 0 }
    }

    /// See [`KvStore::with_priority`](crate::KvStore::with_priority).
    #[must_use]
    pub fn with_priority(&self, priority: i32) -> Self {
        Self { shared: Arc::clone(&self.shared), priority }
    }

    /// See [`KvStore::kind`](crate::KvStore::kind).
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.shared.name
    }

    /// See [`KvStore::rank`](crate::KvStore::rank).
    #[must_use]
    pub fn rank(&self) -> usize {
        match &self.shared.backend {
            Backend::Local(_) => 0,
            Backend::Cluster(session) => usize::from(session.place().rank.0),
        }
    }

    /// See [`KvStore::num_workers`](crate::KvStore::num_workers).
    #[must_use]
    pub fn num_workers(&self) -> usize {
        match &self.shared.backend {
            Backend::Local(_) => 1,
            Backend::Cluster(session) => usize::from(session.place().workers),
        }
    }

    /// See [`KvStore::init`](crate::KvStore::init).
    ///
    /// # Errors
    /// As there.
    pub async fn init(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<(), Error> {
        let op = Op::Init(vec![(key.into(), value.as_tensor().to_tensor())]);
        self.pending(op, nothing).await?.await
    }

    /// See [`KvStore::init_all`](crate::KvStore::init_all).
    ///
    /// # Errors
    /// As there.
    pub async fn init_all<K: Into<Key>, V: AsTensor>(
        &self,
        keys: impl IntoIterator<Item = K>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<(), Error> {
        let op = Op::Init(lists::tensors(keys, values)?);
        self.pending(op, nothing).await?.await
    }

    /// See [`KvStore::broadcast`](crate::KvStore::broadcast).
    ///
    /// # Errors
    /// As there.
    pub async fn broadcast(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<Tensor, Error> {
        let key = key.into();
        self.init(&key, value).await?;
        self.pull(&key).await?.await
    }

    /// See [`KvStore::push`](crate::KvStore::push).
    ///
    /// # Errors
    /// As there.
    pub async fn push(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<Pending<()>, Error> {
        let op = Op::Push(vec![(key.into(), value.as_tensor().into())]);
        self.pending(op, nothing).await
    }

    /// See [`KvStore::push_sum`](crate::KvStore::push_sum).
    ///
    /// # Errors
    /// As there.
    pub async fn push_sum<V: AsTensor>(
        &self,
        key: impl Into<Key>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Pending<()>, Error> {
        let op = Op::Push(vec![(key.into(), lists::sum(values)?)]);
        self.pending(op, nothing).await
    }

    /// See [`KvStore::push_all`](crate::KvStore::push_all).
    ///
    /// # Errors
    /// As there.
    pub async fn push_all<K: Into<Key>, V: AsTensor>(
        &self,
        keys: impl IntoIterator<Item = K>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Pending<()>, Error> {
        let op = Op::Push(lists::values(keys, values)?);
        self.pending(op, nothing).await
    }

    /// See [`KvStore::pull`](crate::KvStore::pull).
    ///
    /// # Errors
    /// As there.
    pub async fn pull(&self, key: impl Into<Key>) -> Result<Pending<Tensor>, Error> {
        self.pending(Op::Pull(vec![key.into()]), tensor).await
    }

    /// See [`KvStore::pull_all`](crate::KvStore::pull_all).
    ///
    /// # Errors
    /// As there.
    pub async fn pull_all<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Pending<Vec<Tensor>>, Error> {
        self.pending(Op::Pull(keys.into_iter().map(Into::into).collect()), tensors).await
    }

    /// See [`KvStore::pull_into`](crate::KvStore::pull_into).
    ///
    /// # Errors
    /// As there. On an error `out` is unchanged.
    pub async fn pull_into<T: Element>(&self, key: impl Into<Key>, out: &mut [T]) -> Result<(), Error> {
        let key = key.into();
        let value = self.pull(&key).await?.await?;
        if value.dtype() != T::DTYPE {
            return Err(Error::DTypeMismatch { key: Some(key), expected: value.dtype(), found: T::DTYPE });
        }
        let elements = value.as_slice::<T>()?;
        if elements.len() != out.len() {
            return Err(Error::ShapeMismatch { key, expected: value.shape().to_vec(), found: vec![out.len() as u64] });
        }
        out.copy_from_slice(elements);
        Ok(())
    }

    /// See [`KvStore::push_pull`](crate::KvStore::push_pull).
    ///
    /// # Errors
    /// As there.
    pub async fn push_pull(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<Pending<Tensor>, Error> {
        let op = Op::PushPull(vec![(key.into(), value.as_tensor().into())]);
        self.pending(op, tensor).await
    }

    /// See [`KvStore::push_pull_all`](crate::KvStore::push_pull_all).
    ///
    /// # Errors
    /// As there.
    pub async fn push_pull_all<K: Into<Key>, V: AsTensor>(
        &self,
        keys: impl IntoIterator<Item = K>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Pending<Vec<Tensor>>, Error> {
        let keys: Vec<Key> = keys.into_iter().map(Into::into).collect();
        let pushes = lists::values(keys.iter(), values)?;
        if pushes.len() == keys.len() {
            return self.pending(Op::PushPull(pushes), tensors).await;
        }
        // A key that stands twice is pushed once and read for each place. Both calls are under way before either is
        // waited for, and a failed push fails the pull of the same keys only if they fail by themselves: wait here.
        self.pending(Op::Push(pushes), nothing).await?.await?;
        self.pending(Op::Pull(keys), tensors).await
    }

    /// See [`KvStore::set_optimizer`](crate::KvStore::set_optimizer).
    ///
    /// # Errors
    /// As there.
    pub async fn set_optimizer(&self, optimizer: &impl Optimizer) -> Result<(), Error> {
        self.pending(Op::SetUpdater(optimizer.spec()?), nothing).await?.await
    }

    /// See [`KvStore::set_updater`](crate::KvStore::set_updater).
    ///
    /// # Errors
    /// As there.
    pub fn set_updater(
        &self,
        updater: impl FnMut(&Key, Slice<'_>, SliceMut<'_>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        self.check_open()?;
        match &self.shared.backend {
            Backend::Local(store) => {
                let updater = Arc::new(FnUpdater(Mutex::new(updater)));
                store.lock().unwrap_or_else(PoisonError::into_inner).set_updater(updater);
                Ok(())
            }
            Backend::Cluster(_) => Err(Error::Unsupported {
                what: "a closure as updater".to_owned(),
                hint: "code does not travel to servers; use set_optimizer, or register an updater in a server of your \
                       own and name it"
                    .to_owned(),
            }),
        }
    }

    /// See [`KvStore::barrier`](crate::KvStore::barrier).
    ///
    /// # Errors
    /// As there.
    pub async fn barrier(&self) -> Result<(), Error> {
        self.check_open()?;
        self.pass_barrier().await
    }

    /// See [`KvStore::set_barrier_before_exit`](crate::KvStore::set_barrier_before_exit).
    pub fn set_barrier_before_exit(&self, barrier: bool) {
        self.shared.barrier_before_exit.store(barrier, Ordering::Release);
    }

    /// See [`KvStore::close`](crate::KvStore::close).
    ///
    /// # Errors
    /// As there.
    pub async fn close(&self) -> Result<(), Error> {
        if self.shared.closed.swap(true, Ordering::AcqRel) {
            return Err(Error::Closed);
        }
        let Backend::Cluster(session) = &self.shared.backend else { return Ok(()) };
        let barrier =
            if self.shared.barrier_before_exit.load(Ordering::Acquire) { self.pass_barrier().await } else { Ok(()) };
        // Also after a failed barrier: the others must not wait for this worker.
        let left = async { session.handle()?.submit(Op::Leave, i32::MIN).await?.await.map(drop) }.await;
        session.closed().await;
        barrier.and(left)
    }

    /// Blocks until `call`, one of this store's, has ended.
    pub(crate) fn block_on<F: Future>(&self, call: F) -> F::Output {
        match &self.shared.backend {
            Backend::Local(_) => pollster::block_on(call),
            Backend::Cluster(session) => session.io().block_on(call),
        }
    }

    async fn pass_barrier(&self) -> Result<(), Error> {
        match &self.shared.backend {
            Backend::Local(_) => Ok(()),
            Backend::Cluster(session) => session.handle()?.barrier().await?.await.map(drop),
        }
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.shared.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    async fn pending<T>(&self, op: Op, extract: fn(Outcome) -> Result<T, Error>) -> Result<Pending<T>, Error> {
        self.check_open()?;
        let started = match &self.shared.backend {
            Backend::Local(store) => Started::Done(store.lock().unwrap_or_else(PoisonError::into_inner).call(op)),
            Backend::Cluster(session) => {
                let submitted = session.handle()?.submit(op, self.priority).await?;
                Started::Waiting(submitted, Arc::clone(session.io()))
            }
        };
        Ok(Pending::new(started, extract))
    }
}

/// A closure of the local process as an updater.
struct FnUpdater<F>(Mutex<F>);

impl<F> Updater for FnUpdater<F>
where
    F: FnMut(&Key, Slice<'_>, SliceMut<'_>) -> Result<(), Error> + Send,
{
    fn update(
        &self,
        step: &Step<'_>,
        weight: SliceMut<'_>,
        _state: &mut State,
        gradient: Slice<'_>,
    ) -> Result<(), String> {
        let mut function = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        function(&step.meta.key, gradient, weight).map_err(|error| error.to_string())
    }
}
