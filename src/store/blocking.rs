//! The store for plain blocking code.

use kv_core::updater::{Slice, SliceMut};
use kv_core::{AsTensor, Element, Error, Key, Tensor};
use kv_optim::Optimizer;

use super::asynchronous::AsyncKvStore;
use crate::builder::Builder;
use crate::pending::Pending;

/// A store of values that workers push to and pull from.
///
/// Calls may come from any thread. What the caller passes in is copied during the call, and what the store hands out
/// is never changed by it afterwards: the two never share memory that either can see change.
///
/// Calls of one worker on one key take effect in the order in which they are made. Every wait has a deadline
/// (`timeout`, 60 s by default) whose error names what was missing.
///
/// Dropping the store closes it without a barrier; while panicking it drops out like a process that died, so that the
/// others learn of it.
pub struct KvStore {
    inner: AsyncKvStore,
}

impl KvStore {
    /// Opens a store of a kind: `local`, `dist_sync`, `dist_async` or one of MXNet's other names; a distributed one
    /// finds its job by the environment (see [`crate::config`]).
    ///
    /// # Errors
    /// An unknown name lists the known ones; else as [`Builder::connect`].
    pub fn create(kind: &str) -> Result<Self, Error> {
        Self::builder(kind).connect()
    }

    /// A store with settings from code.
    #[must_use]
    pub fn builder(kind: &str) -> Builder {
        Builder::new(kind)
    }

    pub(crate) fn from_shared(inner: AsyncKvStore) -> Self {
        Self { inner }
    }

    /// Starts a call and gives it the chance to get under way: from now on the application may compute.
    fn start<T>(&self, call: impl Future<Output = Result<Pending<T>, Error>>) -> Result<Pending<T>, Error> {
        self.inner.block_on(async {
            let pending = call.await;
            tokio::task::yield_now().await;
            pending
        })
    }

    /// The same store for async code.
    #[must_use]
    pub fn to_async(&self) -> AsyncKvStore {
        self.inner.clone()
    }

    /// The same store with another priority for its pushes and pulls. Where they queue up, higher ones go first (0 is
    /// the default); calls on one key never overtake each other.
    #[must_use]
    pub fn with_priority(&self, priority: i32) -> Self {
        Self { inner: self.inner.with_priority(priority) }
    }

    /// The name it was created by, in lower case.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.inner.kind()
    }

    /// Zero-based number of this worker.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.rank()
    }

    /// Workers of the job.
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.inner.num_workers()
    }

    /// Creates a key with its value, shape and element type. Every worker calls it; worker 0's value counts. Returns
    /// when every worker may use the key.
    ///
    /// # Errors
    /// [`Error::AlreadyInitialised`], [`Error::KeyClash`] (another key has the same 64-bit id),
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::ConsistencyMismatch`] (this worker and worker 0
    /// do not agree), [`Error::Timeout`] (worker 0 has not called it).
    pub fn init(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<(), Error> {
        self.inner.block_on(self.inner.init(key, value))
    }

    /// Creates many keys in one call: all of them or, on an error found before anything is created, none.
    ///
    /// # Errors
    /// As [`KvStore::init`], and [`Error::ListMismatch`].
    pub fn init_all<K: Into<Key>, V: AsTensor>(
        &self,
        keys: impl IntoIterator<Item = K>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<(), Error> {
        self.inner.block_on(self.inner.init_all(keys, values))
    }

    /// Creates a key and gives back the value all workers start from.
    ///
    /// # Errors
    /// As [`KvStore::init`] and [`KvStore::pull`].
    pub fn broadcast(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<Tensor, Error> {
        self.inner.block_on(self.inner.broadcast(key, value))
    }

    /// Contributes `value` to the next round of `key`. Returns at once with a handle that can be waited on; while too
    /// much is unfinished it waits. Acknowledged means accepted: whether the round is applied is the business of the
    /// next pull.
    ///
    /// Without an optimizer a round replaces the value by the sum of its contributions.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::ServerLost`]; the others come with the handle: [`Error::NotInitialised`],
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::Updater`], [`Error::Timeout`].
    pub fn push(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<Pending<()>, Error> {
        self.start(self.inner.push(key, value))
    }

    /// Contributes the sum of several arrays, added in the order given.
    ///
    /// # Errors
    /// As [`KvStore::push`], and [`Error::ListMismatch`] for no array, [`Error::LengthMismatch`] and
    /// [`Error::DTypeMismatch`] for arrays that do not fit each other.
    pub fn push_sum<V: AsTensor>(
        &self,
        key: impl Into<Key>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Pending<()>, Error> {
        self.start(self.inner.push_sum(key, values))
    }

    /// Contributes to many keys in one call. Values of a key that stands several times are summed first. An empty list
    /// does nothing.
    ///
    /// # Errors
    /// As [`KvStore::push`], and [`Error::ListMismatch`]; none of the keys is pushed to when one of them does not fit.
    pub fn push_all<K: Into<Key>, V: AsTensor>(
        &self,
        keys: impl IntoIterator<Item = K>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Pending<()>, Error> {
        self.start(self.inner.push_all(keys, values))
    }

    /// Reads a value: after all earlier calls of this worker on the key. In a `dist_sync` store the value after
    /// exactly the rounds this worker has contributed to, the same for all workers; in the others the newest.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::ServerLost`]; with the handle: [`Error::NotInitialised`], [`Error::Timeout`] (names
    /// the workers that have not contributed), [`Error::WorkerLost`].
    pub fn pull(&self, key: impl Into<Key>) -> Result<Pending<Tensor>, Error> {
        self.start(self.inner.pull(key))
    }

    /// Reads many values in one call, in the order of the keys; a key may stand several times.
    ///
    /// # Errors
    /// As [`KvStore::pull`].
    pub fn pull_all<K: Into<Key>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Pending<Vec<Tensor>>, Error> {
        self.start(self.inner.pull_all(keys))
    }

    /// Reads a value into memory of the caller; blocks until it is there.
    ///
    /// # Errors
    /// As [`KvStore::pull`], and [`Error::DTypeMismatch`], [`Error::ShapeMismatch`] when `out` does not fit. On an
    /// error `out` is unchanged.
    pub fn pull_into<T: Element>(&self, key: impl Into<Key>, out: &mut [T]) -> Result<(), Error> {
        self.inner.block_on(self.inner.pull_into(key, out))
    }

    /// [`KvStore::push`] and [`KvStore::pull`] in one round trip.
    ///
    /// # Errors
    /// Those of both; after an error of the pull the push may have been accepted.
    pub fn push_pull(&self, key: impl Into<Key>, value: impl AsTensor) -> Result<Pending<Tensor>, Error> {
        self.start(self.inner.push_pull(key, value))
    }

    /// [`KvStore::push_all`] and [`KvStore::pull_all`] in one round trip.
    ///
    /// # Errors
    /// Those of both.
    pub fn push_pull_all<K: Into<Key>, V: AsTensor>(
        &self,
        keys: impl IntoIterator<Item = K>,
        values: impl IntoIterator<Item = V>,
    ) -> Result<Pending<Vec<Tensor>>, Error> {
        self.start(self.inner.push_pull_all(keys, values))
    }

    /// Lets an optimizer update the values: here for a `local` store, on all servers for a distributed one. Returns
    /// when all of them have it. Every worker may call it: the same optimizer with the same settings changes nothing,
    /// other settings keep its state, another optimizer starts without state.
    ///
    /// # Errors
    /// [`Error::Updater`] names the setting that makes no sense, or says that a server does not know the optimizer.
    pub fn set_optimizer(&self, optimizer: &impl Optimizer) -> Result<(), Error> {
        self.inner.block_on(self.inner.set_optimizer(optimizer))
    }

    /// Lets a function of this process update the values of a `local` store: it is called with the key, the summed
    /// gradient and the stored value, once for each push.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a distributed store: code does not travel.
    pub fn set_updater(
        &self,
        updater: impl FnMut(&Key, Slice<'_>, SliceMut<'_>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        self.inner.set_updater(updater)
    }

    /// Waits until all workers are here, after this worker's own pushes are acknowledged.
    ///
    /// # Errors
    /// [`Error::Timeout`] names who is missing; [`Error::WorkerLost`] names a worker that will never come.
    pub fn barrier(&self) -> Result<(), Error> {
        self.inner.block_on(self.inner.barrier())
    }

    /// Whether [`KvStore::close`] waits for all workers first. It does unless told otherwise.
    pub fn set_barrier_before_exit(&self, barrier: bool) {
        self.inner.set_barrier_before_exit(barrier);
    }

    /// Leaves the job after everything this worker pushed is acknowledged. The job ends when all workers have left.
    /// Every later call is [`Error::Closed`].
    ///
    /// # Errors
    /// Those of the barrier; the worker has left all the same.
    pub fn close(&self) -> Result<(), Error> {
        self.inner.block_on(self.inner.close())
    }
}
