//! What to do while nothing happens: MPI has nothing to wait on, so somebody has to look.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// When the thread that owns MPI looks again while nothing happens: it spins, then yields its core, then sleeps for an
/// eighth of the time that nothing has happened, within bounds.
///
/// Sleeping in proportion adds at most an eighth to the time a peer takes anyway. With sleeps that grow by themselves,
/// two ranks can lock each other into their longest ones (measured: 1.7 ms instead of 3 us for 8 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// How long to spin. Default 50 us where every rank of the host has two cores, else 0.
    pub spin: Duration,
    /// How long to yield after that. Default 50 us.
    pub yield_for: Duration,
    /// The shortest sleep, and the longest while something is under way. Default 10 us.
    pub sleep_min: Duration,
    /// The longest sleep: the most that is added to the first message after a pause. Default 1 ms.
    pub sleep_max: Duration,
}

/// What to do before looking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    Spin,
    Yield,
    Sleep(Duration),
}

impl IdlePolicy {
    /// The default for a host with this many ranks and cores.
    #[must_use]
    pub fn for_host(ranks: usize, cores: usize) -> Self {
        let spin = if ranks.saturating_mul(2) <= cores { Duration::from_micros(50) } else { Duration::ZERO };
        Self {
            spin,
            yield_for: Duration::from_micros(50),
            sleep_min: Duration::from_micros(10),
            sleep_max: Duration::from_millis(1),
        }
    }

    /// What to do after nothing has happened for `idle`; `busy` when something is under way.
    pub(crate) fn pause(&self, idle: Duration, busy: bool) -> Pause {
        if idle < self.spin {
            return Pause::Spin;
        }
        if idle < self.spin + self.yield_for {
            return Pause::Yield;
        }
        let max = if busy { self.sleep_min } else { self.sleep_max.max(self.sleep_min) };
        Pause::Sleep((idle / 8).clamp(self.sleep_min, max))
    }
}

/// Since when nothing happens, and a clock that can sleep for microseconds: the runtime's timer only knows
/// milliseconds.
pub(crate) struct Idle {
    policy: IdlePolicy,
    since: Option<Instant>,
    timer: AsyncFd<OwnedFd>,
}

impl Idle {
    /// To be called within a runtime.
    pub(crate) fn new(policy: IdlePolicy) -> std::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is owned by the `AsyncFd`, which never gives it away or exchanges it.
        let timer = unsafe { AsyncFd::register(timer) }?;
        Ok(Self { policy, since: None, timer })
    }

    /// Something happened.
    pub(crate) fn reset(&mut self) {
        self.since = None;
    }

    /// Nothing happened: what to do.
    pub(crate) fn pause(&mut self, busy: bool) -> Pause {
        let idle = match self.since {
            Some(since) => since.elapsed(),
            None => {
                self.since = Some(Instant::now());
                Duration::ZERO
            }
        };
        self.policy.pause(idle, busy)
    }

    /// # Cancel safety
    /// Nothing is left behind but a timer that the next sleep sets anew.
    pub(crate) async fn sleep(&self, duration: Duration) -> std::io::Result<()> {
        let value = Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut ticks = [0_u8; 8];
            match rustix::io::read(self.timer.get_ref(), &mut ticks) {
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
        assert_eq!(policy.pause(49 * US, false), Pause::Spin);
        assert_eq!(policy.pause(50 * US, false), Pause::Yield);
        assert_eq!(policy.pause(100 * US, false), Pause::Sleep(100 * US / 8));
        assert_eq!(policy.pause(4000 * US, false), Pause::Sleep(500 * US));
        assert_eq!(policy.pause(Duration::from_secs(9), false), Pause::Sleep(1000 * US));
        assert_eq!(policy.pause(Duration::from_secs(9), true), Pause::Sleep(10 * US));
    }

    #[test]
    fn nobody_spins_on_a_crowded_host() {
        assert_eq!(IdlePolicy::for_host(3, 2).pause(Duration::ZERO, false), Pause::Yield);
    }

    #[tokio::test]
    async fn a_sleep_takes_its_time_also_after_one_that_was_dropped() {
        let idle = Idle::new(IdlePolicy::for_host(1, 1)).unwrap();
        for _ in 0..20 {
            // Dropped before it is polled at all, and in the middle.
            drop(idle.sleep(10 * US));
            assert!(tokio::time::timeout(Duration::ZERO, idle.sleep(2000 * US)).await.is_err());
            let start = Instant::now();
            idle.sleep(500 * US).await.unwrap();
            assert!(start.elapsed() >= 500 * US, "{:?}", start.elapsed());
        }
    }
}
