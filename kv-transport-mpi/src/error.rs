//! What MPI answers, as values.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use kv_core::van::VanError;
use mpi::ffi;

/// A call of MPI that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{call} failed: {text} (code {code})")]
pub struct MpiError {
    /// The function.
    pub call: &'static str,
    /// Its return code.
    pub code: i32,
    /// What MPI says about the code.
    pub text: String,
}

impl From<MpiError> for VanError {
    fn from(error: MpiError) -> Self {
        Self::Transport(Arc::new(error))
    }
}

/// Turns a return code into a result.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), MpiError> {
    // MPI_SUCCESS is 0 by the standard.
    if code == 0 { Ok(()) } else { Err(MpiError { call, code, text: text_of(code) }) }
}

/// Longest text either library writes: both define MPI_MAX_ERROR_STRING below this.
const TEXT_BYTES: usize = 4096;

fn text_of(code: c_int) -> String {
    let mut text: [c_char; TEXT_BYTES] = [0; TEXT_BYTES];
    let mut len = 0;
    // SAFETY: MPI writes at most MPI_MAX_ERROR_STRING bytes, zero included, into `text`, which is larger.
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut len) } == 0;
    // Whatever was written, the last byte stays a zero.
    text[TEXT_BYTES - 1] = 0;
    // SAFETY: `text` is initialised and ends with a zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    if known { text.into_owned() } else { "an unknown error".to_owned() }
}
