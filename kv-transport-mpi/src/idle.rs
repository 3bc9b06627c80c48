//! What to do while nothing happens: MPI has nothing to wait on, so somebody has to look.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// When to look again while nothing happens: for a while all the time, then after sleeping for an eighth of the time
/// that nothing has happened, within bounds.
///
/// Sleeping in proportion adds at most an eighth to the time a peer takes anyway. With sleeps that grow by themselves,
/// two ranks can lock each other into their longest ones (measured: 1.7 ms instead of 3 us for 8 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// How long to look all the time; five times as long while something is under way. Default 200 us.
    pub look_for: Duration,
    /// After how many looks to offer the core to others, which may be the very rank that is waited for: the operating
    /// system puts two of them on one core even where there are more. Default 8, and 1 where ranks have to share
    /// cores.
    pub looks_per_yield: u32,
    /// The shortest sleep, and the longest while something is under way. Default 10 us.
    pub sleep_min: Duration,
    /// The longest sleep: the most that is added to the first message after a pause. Default 1 ms.
    pub sleep_max: Duration,
}

/// What one look has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Something happened.
    News,
    /// Nothing happened, but something is under way.
    Busy,
    /// Nothing happened, and nothing is under way.
    Quiet,
}

/// How much longer to look while something is under way.
const BUSY_FACTOR: u32 = 5;

impl IdlePolicy {
    /// The default for a host with this many ranks and cores.
    #[must_use]
    pub fn for_host(ranks: usize, cores: usize) -> Self {
        Self {
            look_for: Duration::from_micros(200),
            // One of the ranks is the scheduler, which sleeps most of the time.
            looks_per_yield: if ranks <= cores + 1 { 8 } else { 1 },
            sleep_min: Duration::from_micros(10),
            sleep_max: Duration::from_millis(1),
        }
    }

    /// Looks until something happens or it was looked for long enough. Returns whether something happened.
    pub(crate) fn look(&self, mut look: impl FnMut() -> Look) -> bool {
        let start = Instant::now();
        let mut looks = 0_u32;
        loop {
            let seen = look();
            if seen == Look::News {
                return true;
            }
            looks += 1;
            if !looks.is_multiple_of(self.looks_per_yield.max(1)) {
                std::hint::spin_loop();
                continue;
            }
            let long_enough = if seen == Look::Busy { self.look_for * BUSY_FACTOR } else { self.look_for };
            if start.elapsed() >= long_enough {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// How long to sleep after nothing has happened for `idle`; `busy` when something is under way.
    pub(crate) fn sleep(&self, idle: Duration, busy: bool) -> Duration {
        let max = if busy { self.sleep_min } else { self.sleep_max.max(self.sleep_min) };
        (idle / 8).clamp(self.sleep_min, max)
    }
}

/// A clock that can sleep for microseconds: the runtime's timer only knows milliseconds.
pub(crate) struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// To be called within a runtime.
    pub(crate) fn new() -> std::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is owned by the `AsyncFd`, which never gives it away or exchanges it.
        Ok(Self(unsafe { AsyncFd::register(timer) }?))
    }

    /// # Cancel safety
    /// Nothing is left behind but a timer that the next sleep sets anew.
    pub(crate) async fn sleep(&self, duration: Duration) -> std::io::Result<()> {
        let value = Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let mut ticks = [0_u8; 8];
            match rustix::io::read(self.0.get_ref(), &mut ticks) {
                Ok(_) => return Ok(()),
                // An earlier sleep's tick that setting the timer has taken back.
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn sleeps_are_in_proportion_and_bounded() {
        let policy = IdlePolicy::for_host(2, 4);
        assert_eq!(policy.sleep(Duration::ZERO, false), 10 * US);
        assert_eq!(policy.sleep(100 * US, false), 100 * US / 8);
        assert_eq!(policy.sleep(4000 * US, false), 500 * US);
        assert_eq!(policy.sleep(Duration::from_secs(9), false), 1000 * US);
        assert_eq!(policy.sleep(Duration::from_secs(9), true), 10 * US);
    }

    #[test]
    fn looking_ends_with_news_or_in_time() {
        for (ranks, cores) in [(3, 2), (9, 2)] {
            let policy = IdlePolicy { look_for: 300 * US, ..IdlePolicy::for_host(ranks, cores) };
            let start = Instant::now();
            assert!(!policy.look(|| Look::Quiet));
            assert!(start.elapsed() >= policy.look_for);
            let mut looks = 0;
            assert!(policy.look(|| {
                looks += 1;
                if looks == 20 { Look::News } else { Look::Busy }
            }));
            assert_eq!(looks, 20);
        }
    }

    #[tokio::test]
    async fn a_sleep_takes_its_time_also_after_one_that_was_dropped() {
        let timer = Timer::new().unwrap();
        for _ in 0..20 {
            // Dropped before it is polled at all, and in the middle.
            drop(timer.sleep(10 * US));
            tokio::select! {
                biased;
                _ = timer.sleep(Duration::from_secs(3600)) => unreachable!("an hour is over"),
                () = std::future::ready(()) => {}
            }
            let start = Instant::now();
            timer.sleep(500 * US).await.unwrap();
            assert!(start.elapsed() >= 500 * US, "{:?}", start.elapsed());
        }
    }
}
