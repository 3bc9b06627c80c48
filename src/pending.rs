//! Calls under way.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use kv_core::driver::Submitted;
use kv_core::machine::Outcome;
use kv_core::{Error, Tensor};

use crate::io_loop::IoLoop;

/// A call under way: [`wait`](Pending::wait) for it in blocking code, `.await` it in async code.
///
/// Dropping it does not undo the call; it only forgets how it ends. Errors of a dropped push show again in the next
/// wait that depends on it, if any, so a training loop waits for its pushes or pulls what it pushed.
#[must_use = "the call may fail; wait for it"]
pub struct Pending<T> {
    state: State,
    extract: fn(Outcome) -> Result<T, Error>,
}

enum State {
    Done(Option<Result<Outcome, Error>>),
    Waiting(Submitted, Arc<IoLoop>),
}

impl<T> Pending<T> {
    pub(crate) fn new(started: Started, extract: fn(Outcome) -> Result<T, Error>) -> Self {
        let state = match started {
            Started::Done(result) => State::Done(Some(result)),
            Started::Waiting(submitted, io) => State::Waiting(submitted, io),
        };
        Self { state, extract }
    }

    /// Blocks until the call has ended.
    ///
    /// # Errors
    /// Those of the call.
    pub fn wait(self) -> Result<T, Error> {
        match &self.state {
            State::Done(_) => pollster::block_on(self),
            State::Waiting(_, io) => Arc::clone(io).block_on(self),
        }
    }
}

/// A call that has been started.
pub(crate) enum Started {
    /// In this process: it has ended already.
    Done(Result<Outcome, Error>),
    /// On servers, over this loop.
    Waiting(Submitted, Arc<IoLoop>),
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let extract = self.extract;
        let result = match &mut self.state {
            // Polled again after its end, it has nothing more to say.
            State::Done(result) => result.take().unwrap_or(Err(Error::Closed)),
            State::Waiting(submitted, _) => match Pin::new(submitted).poll(context) {
                Poll::Ready(result) => result,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(result.and_then(extract))
    }
}

/// What a push gives.
pub(crate) fn nothing(_: Outcome) -> Result<(), Error> {
    Ok(())
}

/// What a call on a list of keys gives.
pub(crate) fn tensors(outcome: Outcome) -> Result<Vec<Tensor>, Error> {
    match outcome {
        Outcome::Values(values) => Ok(values),
        // A call on no keys.
        Outcome::Done => Ok(Vec::new()),
    }
}

/// What a call on one key gives.
pub(crate) fn tensor(outcome: Outcome) -> Result<Tensor, Error> {
    let missing = || Error::Protocol("a pull gave no value".to_owned());
    tensors(outcome)?.pop().ok_or_else(missing)
}
