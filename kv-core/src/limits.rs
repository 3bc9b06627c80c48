//! Every limit of the system, in one place, each with its unit and its reason.

use std::time::Duration;

/// Default chunk size in bytes. A chunk stays in a core's L2 cache between being received and being summed; 64 to
/// 256 KiB measured best (a 16 MiB push in reused 128 KiB buffers takes half the time of one received whole).
pub const CHUNK_BYTES_DEFAULT: u32 = 128 * 1024;

/// Smallest chunk size a job may choose.
pub const CHUNK_BYTES_MIN: u32 = 64;

/// Largest chunk size a job may choose: bounds what one message can make a peer reserve.
pub const CHUNK_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// A message stops taking further entries once its values reach this many bytes. Small keys of one call share a
/// message; a value of at least one chunk travels chunk by chunk.
pub const MESSAGE_VALUE_BYTES: usize = 4 * 1024 * 1024;

/// Most entries in one data message (24 bytes each on the wire).
pub const MESSAGE_ENTRIES_MAX: usize = 1 << 20;

/// Largest encoded control message in bytes (a roster of some thousand nodes).
pub const CONTROL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Requests one worker may have unanswered at one server. It bounds the server's memory of them and the window in
/// which it restores order; a worker keeps further requests at home.
pub const UNANSWERED_REQUESTS_MAX: u64 = 4096;

/// Bytes of values one worker may have unanswered at one server before it keeps further ones at home, where a more
/// urgent request can still go first.
pub const UNANSWERED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Rounds of one key that may be open at once. A worker further ahead is acknowledged later, so its own window makes
/// it wait: the server's memory for pending sums is bounded by this times the value and what the
/// workers' windows add to it (`deterministic` rounds keep one contribution of each worker apart).
pub const OPEN_ROUNDS_MAX: usize = 8;

/// Longest name of a key in bytes.
pub const KEY_NAME_BYTES_MAX: usize = 64 * 1024;

/// Most dimensions of a shape.
pub const SHAPE_DIMS_MAX: usize = 32;

/// Slots that keys are spread over; each slot belongs to one server. Many times the number of servers, so that shares
/// are even and can move one slot at a time.
pub const SLOTS: u16 = 1024;

/// Most members of a job (servers and workers together).
pub const MEMBERS_MAX: usize = 16 * 1024;

/// How much longer than the server's own deadline a worker waits for its answer, so that the server can say what was
/// missing before the worker gives up on the server.
pub const ANSWER_GRACE: Duration = Duration::from_secs(3);

/// Default deadline of every wait.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Shortest time between two heartbeats: a node that had none would do nothing else.
pub const HEARTBEAT_EVERY_MIN: Duration = Duration::from_millis(1);

/// Longest deadline a request may carry; longer ones are cut to it.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
