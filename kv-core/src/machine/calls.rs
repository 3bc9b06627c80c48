//! What the application asks of a worker.

use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::key::Key;
use crate::tensor::{Tensor, TensorRef};
use crate::wire::UpdaterSpec;

/// Number of a call of one worker, chosen by whoever submits it, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A value on its way out: the store's own copy of the caller's.
#[derive(Clone, Debug)]
pub struct Value {
    /// Element type.
    pub dtype: DType,
    /// Shape, if the caller's type has one; else only the length is checked.
    pub shape: Option<Vec<u64>>,
    /// The elements.
    pub buffer: Buffer,
}

impl From<TensorRef<'_>> for Value {
    fn from(value: TensorRef<'_>) -> Self {
        Self { dtype: value.dtype, shape: value.shape.map(<[u64]>::to_vec), buffer: Buffer::copy_of(value.bytes) }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self { dtype: tensor.dtype(), shape: Some(tensor.shape().to_vec()), buffer: tensor.into_buffer() }
    }
}

/// One call.
#[derive(Clone, Debug)]
pub enum Op {
    /// Create keys. Rank 0's values count; the others wait until the keys exist and check that they agree.
    Init(Vec<(Key, Tensor)>),
    /// Contribute to the next round of each key.
    Push(Vec<(Key, Value)>),
    /// Read each key.
    Pull(Vec<Key>),
    /// Contribute, and read what results, in one round trip.
    PushPull(Vec<(Key, Value)>),
    /// Use this updater on all servers.
    SetUpdater(UpdaterSpec),
    /// Drop out of every count on all servers. The last call.
    Leave,
}

impl Op {
    /// The keys it touches.
    pub(super) fn keys(&self) -> Vec<&Key> {
        match self {
            Self::Init(entries) => entries.iter().map(|(key, _)| key).collect(),
            Self::Push(entries) | Self::PushPull(entries) => entries.iter().map(|(key, _)| key).collect(),
            Self::Pull(keys) => keys.iter().collect(),
            Self::SetUpdater(_) | Self::Leave => Vec::new(),
        }
    }

    /// Whether it changes what others see: a barrier waits for it.
    pub(super) fn has_effects(&self) -> bool {
        matches!(self, Self::Init(_) | Self::Push(_) | Self::PushPull(_) | Self::SetUpdater(_))
    }

    /// Whether it concerns every key, also those that are not known yet.
    pub(super) fn is_on_all_keys(&self) -> bool {
        matches!(self, Self::SetUpdater(_) | Self::Leave)
    }
}
