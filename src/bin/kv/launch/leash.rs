//! The launcher may be killed in a way that leaves it no time to clean up. Its kv processes notice.

/// Variable with the launcher's process id.
pub(super) const LAUNCHER_PID: &str = "KV_LAUNCHER_PID";

/// Makes this process end when the launcher that started it does; nothing happens when none did.
///
/// Every kv subcommand calls this first. The system sends SIGTERM at the launcher's death, so that the process ends
/// as it would when the launcher told it to. It works for direct children: a process behind a shell script loses its
/// scheduler instead.
pub(crate) fn die_with_launcher() {
    #[cfg(target_os = "linux")]
    linux::die_with_launcher();
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, test_kill_process};

    pub(super) fn die_with_launcher() {
        let Some(launcher) = std::env::var(super::LAUNCHER_PID).ok().and_then(|text| text.parse().ok()) else { return };
        let Some(launcher) = Pid::from_raw(launcher) else { return };
        if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
            eprintln!("warning: this process will not notice when its launcher is killed: {error}");
        }
        if getppid() == Some(launcher) {
            return;
        }
        // The parent is another process: either the launcher started it, or the launcher died before the lines above,
        // and the signal that tells of it will never come.
        if test_kill_process(launcher) == Err(rustix::io::Errno::SRCH) {
            eprintln!("error: the launcher (process {launcher:?}) is gone");
            std::process::exit(128 + Signal::TERM.as_raw());
        }
        let _ = set_parent_process_death_signal(None);
    }
}
