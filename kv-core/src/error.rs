//! What can go wrong, as values: each says what was expected, what was found, and what to do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::{NodeName, Rank};
use crate::consistency::Consistency;
use crate::dtype::DType;
use crate::key::{Key, KeyId};
use crate::tensor::ShapeText;
use crate::van::{Endpoint, VanError};

/// The error of every store operation. The store stays usable after any of them unless the text says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Push or pull of a key that nobody initialised.
    #[error("key {key} is not initialised; call init on it first")]
    NotInitialised {
        /// The key.
        key: Key,
    },
    /// `init` of a key that exists, or that stands twice in one list.
    #[error("key {key} is already initialised; a key is initialised once, then pushed to")]
    AlreadyInitialised {
        /// The key.
        key: Key,
    },
    /// Two different keys share a 64-bit id.
    #[error("keys {key} and {existing} have the same 64-bit id; rename one of them")]
    KeyClash {
        /// The key of this call.
        key: Key,
        /// The key that exists.
        existing: Key,
    },
    /// A value of another shape than the key's.
    #[error("key {key} has shape {}, found {}", ShapeText(expected), ShapeText(found))]
    ShapeMismatch {
        /// The key.
        key: Key,
        /// Shape at `init`.
        expected: Vec<u64>,
        /// Shape of this call.
        found: Vec<u64>,
    },
    /// A value of another element type than the key's.
    #[error("{} has element type {expected}, found {found}", KeyOrValue(key))]
    DTypeMismatch {
        /// The key, where one is concerned.
        key: Option<Key>,
        /// Element type at `init`.
        expected: DType,
        /// Element type of this call.
        found: DType,
    },
    /// Shape and number of bytes do not agree.
    #[error("{what} needs {expected} bytes, found {found}")]
    LengthMismatch {
        /// What was measured.
        what: String,
        /// Bytes needed (`u64::MAX` when not even 64 bits can say).
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Two workers use one key with different consistency.
    #[error("key {key} was initialised as {expected}, this store is {found}; all workers open the same kind of store")]
    ConsistencyMismatch {
        /// The key.
        key: Key,
        /// Consistency at `init`.
        expected: Consistency,
        /// Consistency of this store.
        found: Consistency,
    },
    /// Lists of different lengths in one call.
    #[error("the call has {keys} keys but {values} values; give one value for each key")]
    ListMismatch {
        /// Length of the list of keys.
        keys: usize,
        /// Length of the list of values.
        values: usize,
    },
    /// A wait reached its deadline; `what` names what was missing.
    #[error("waited {waited:?} for {what}")]
    Timeout {
        /// What was missing.
        what: String,
        /// How long was waited.
        waited: Duration,
    },
    /// A worker whose contribution is needed is gone.
    #[error("{name} is lost ({reason}); what waited for it cannot complete")]
    WorkerLost {
        /// The worker.
        name: NodeName,
        /// Why it is thought lost.
        reason: String,
    },
    /// A server that owns a share of the keys is gone. The store cannot be used any more.
    #[error("{name} is lost ({reason}); the values it owned are gone with it, restart the job")]
    ServerLost {
        /// The server.
        name: NodeName,
        /// Why it is thought lost.
        reason: String,
    },
    /// The scheduler is gone. The store cannot be used any more.
    #[error("the scheduler at {endpoint} is lost ({reason}); restart the job")]
    SchedulerLost {
        /// Its address.
        endpoint: Endpoint,
        /// Why it is thought lost.
        reason: String,
    },
    /// The scheduler ended the job.
    #[error("the job has failed: {reason}")]
    JobFailed {
        /// The scheduler's reason.
        reason: String,
    },
    /// The scheduler or a server refused this node.
    #[error("refused by {by}: {reason}")]
    Refused {
        /// Who refused.
        by: String,
        /// Its reason.
        reason: String,
    },
    /// The store is closed.
    #[error("the store is closed; open a new one")]
    Closed,
    /// An optimizer could not be decoded, or could not update a value.
    #[error("updater: {reason}")]
    Updater {
        /// What is wrong with it.
        reason: String,
    },
    /// A call that this kind of store does not offer.
    #[error("{what} is not supported here: {hint}")]
    Unsupported {
        /// The call.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A limit of the system.
    #[error("{what} is limited to {limit}, found {found}")]
    Limit {
        /// What is limited.
        what: String,
        /// The limit.
        limit: u64,
        /// What was found.
        found: u64,
    },
    /// Settings that do not make sense.
    #[error("configuration: {0}")]
    Config(String),
    /// A peer sent something that no version of this program sends.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The transport.
    #[error(transparent)]
    Van(#[from] VanError),
}

struct KeyOrValue<'a>(&'a Option<Key>);

impl std::fmt::Display for KeyOrValue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(key) => write!(f, "key {key}"),
            None => f.write_str("the value"),
        }
    }
}

/// A server's or the scheduler's "no", as it travels.
///
/// It names keys by id; the worker that asked puts the name back ([`Rejection::into_error`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Rejection {
    /// See [`Error::NotInitialised`].
    NotInitialised(KeyId),
    /// See [`Error::AlreadyInitialised`].
    AlreadyInitialised(Key),
    /// See [`Error::KeyClash`].
    KeyClash {
        /// The key of the request.
        key: Key,
        /// The key that exists.
        existing: Key,
    },
    /// See [`Error::ShapeMismatch`].
    ShapeMismatch {
        /// The key.
        key: Key,
        /// Shape at `init`.
        expected: Vec<u64>,
        /// Shape of the request.
        found: Vec<u64>,
    },
    /// See [`Error::DTypeMismatch`].
    DTypeMismatch {
        /// The key.
        key: KeyId,
        /// Element type at `init`.
        expected: DType,
        /// Element type of the request.
        found: DType,
    },
    /// A chunk of another length than the key's.
    LengthMismatch {
        /// The key.
        key: KeyId,
        /// Bytes of the chunk.
        expected: u64,
        /// Bytes in the request.
        found: u64,
    },
    /// See [`Error::ConsistencyMismatch`].
    ConsistencyMismatch {
        /// The key.
        key: Key,
        /// Consistency at `init`.
        expected: Consistency,
        /// Consistency of the request.
        found: Consistency,
    },
    /// A round did not close in time.
    RoundIncomplete {
        /// The key.
        key: KeyId,
        /// The round waited for (the first is 1).
        round: u64,
        /// Workers that have not contributed to it.
        missing: Vec<Rank>,
        /// How long was waited.
        waited: Duration,
    },
    /// A key was not initialised by the worker whose business that is, in time.
    InitIncomplete {
        /// The key.
        key: Key,
        /// How long was waited.
        waited: Duration,
    },
    /// A barrier did not complete in time.
    BarrierIncomplete {
        /// Workers that have not arrived.
        missing: Vec<Rank>,
        /// How long was waited.
        waited: Duration,
    },
    /// See [`Error::WorkerLost`].
    WorkerLost {
        /// The worker.
        name: NodeName,
        /// Why it is thought lost.
        reason: String,
    },
    /// See [`Error::Updater`].
    Updater(String),
    /// The sender is not a live worker of this job.
    NotAMember,
    /// The request itself makes no sense; the text says why.
    Malformed(String),
}

impl Rejection {
    /// The error for the caller. `name_of` finds the key behind an id.
    pub fn into_error(self, name_of: impl Fn(KeyId) -> Key) -> Error {
        match self {
            Self::NotInitialised(key) => Error::NotInitialised { key: name_of(key) },
            Self::AlreadyInitialised(key) => Error::AlreadyInitialised { key },
            Self::KeyClash { key, existing } => Error::KeyClash { key, existing },
            Self::ShapeMismatch { key, expected, found } => Error::ShapeMismatch { key, expected, found },
            Self::DTypeMismatch { key, expected, found } => {
                Error::DTypeMismatch { key: Some(name_of(key)), expected, found }
            }
            Self::LengthMismatch { key, expected, found } => {
                Error::LengthMismatch { what: format!("a chunk of key {}", name_of(key)), expected, found }
            }
            Self::ConsistencyMismatch { key, expected, found } => Error::ConsistencyMismatch { key, expected, found },
            Self::RoundIncomplete { key, round, missing, waited } => Error::Timeout {
                what: format!("round {round} of key {}: no contribution from {}", name_of(key), workers(&missing)),
                waited,
            },
            Self::InitIncomplete { key, waited } => {
                Error::Timeout { what: format!("key {key}: worker 0 has not initialised it"), waited }
            }
            Self::BarrierIncomplete { missing, waited } => {
                Error::Timeout { what: format!("the barrier: {} not there", workers(&missing)), waited }
            }
            Self::WorkerLost { name, reason } => Error::WorkerLost { name, reason },
            Self::Updater(reason) => Error::Updater { reason },
            Self::NotAMember => Error::Refused {
                by: "the server".to_owned(),
                reason: "this node is not a live worker of the job (it was declared lost, or has left)".to_owned(),
            },
            Self::Malformed(reason) => Error::Protocol(reason),
        }
    }
}

/// Ranks as text: `worker 1`, `workers 1, 2`.
fn workers(ranks: &[Rank]) -> String {
    let list: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match list.as_slice() {
        [] => "any worker".to_owned(),
        [one] => format!("worker {one}"),
        many => format!("workers {}", many.join(", ")),
    }
}
