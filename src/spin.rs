//! Looking for news instead of sleeping: a wake-up of a thread costs more than most answers take.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Runs `work`, and keeps its thread awake for `spin` after each time that something happened to it: the runtime looks
/// for I/O without waiting, and sleeps only after that. To be awaited where a runtime of one thread blocks on it.
pub(crate) async fn spinning<F: Future>(work: F, spin: Duration) -> F::Output {
    if spin.is_zero() {
        return work.await;
    }
    let mut work = pin!(work);
    let news = Arc::new(News { some: AtomicBool::new(true), parent: Mutex::new(Waker::noop().clone()) });
    let waker = Waker::from(Arc::clone(&news));
    let mut last = Instant::now();
    loop {
        let polled = std::future::poll_fn(|context| {
            if !news.some.swap(false, Ordering::AcqRel) {
                return Poll::Ready(None);
            }
            last = Instant::now();
            news.set_parent(context.waker());
            Poll::Ready(match work.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
        });
        if let Some(output) = polled.await {
            return output;
        }
        if last.elapsed() < spin {
            tokio::task::yield_now().await;
        } else {
            // The parent is woken with the news.
            std::future::poll_fn(|context| {
                news.set_parent(context.waker());
                if news.some.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}

/// Whether the work was woken, and who is to be woken for it.
struct News {
    some: AtomicBool,
    parent: Mutex<Waker>,
}

impl News {
    fn set_parent(&self, waker: &Waker) {
        self.parent.lock().unwrap_or_else(PoisonError::into_inner).clone_from(waker);
    }
}

impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.some.swap(true, Ordering::AcqRel) {
            let parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner).clone();
            parent.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node;

    /// Wakes from tasks, from other threads and by time are all noticed, during the spin and after it.
    #[test]
    fn nothing_is_missed() {
        for spin in [0, 20, 100_000].map(Duration::from_micros) {
            let (send, mut receive) = tokio::sync::mpsc::channel(1);
            let other = std::thread::spawn(move || {
                for round in 0..200_u32 {
                    pollster::block_on(send.send(round)).unwrap();
                    if round % 50 == 0 {
                        // Longer than the short spin.
                        std::thread::park_timeout(Duration::from_millis(2));
                    }
                }
            });
            node::runtime().unwrap().block_on(spinning(
                async {
                    for round in 0..200 {
                        assert_eq!(receive.recv().await, Some(round));
                        tokio::task::yield_now().await;
                    }
                    tokio::time::sleep(Duration::from_millis(3)).await;
                },
                spin,
            ));
            other.join().unwrap();
        }
    }
}
