//! Being told to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that tell this process to end.
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Interrupts {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            // Under `nohup` the end of the terminal is meant to be survived.
            hangup: if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// The number of the next one.
    pub(super) async fn next(&mut self) -> u8 {
        let hangup = async {
            match &mut self.hangup {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = hangup => 1,
        }
    }
}

/// Whether this process was started with SIGHUP ignored. False where the system does not say.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}
