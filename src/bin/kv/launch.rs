//! `kv launch`: a whole job on this machine, started, watched and cleaned up as one.
//!
//! ```text
//!   kv launch ── scheduler   says where it listens, then
//!             ├─ server 0..  are told, and at last
//!             └─ worker 0..  the program
//! ```
//!
//! Every process is the leader of a process group of its own, so that a signal reaches what it has started too.
//! - [`plan`]: which processes, with which arguments and environment; no process is started there
//! - [`group`]: one process group from start to the end of its last member
//! - [`output`]: lines of many processes on one output
//! - [`supervise`]: the order of things, and what the job's exit code is
//! - [`interrupts`]: the signals that tell launch itself to end
//! - [`leash`]: the other end, in kv's own processes: do not outlive the launcher

mod group;
mod interrupts;
mod leash;
mod output;
mod plan;
mod supervise;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use kv::Error;
use kv::config::{Settings, process_env};
use kv::transport::{self, Addressing};

pub(crate) use leash::die_with_launcher;
pub(crate) use plan::{LaunchPlan, Program, Stdout};

use plan::Variable;

/// Start a job on this machine: a scheduler, servers, and a program as every worker.
///
/// The output of every process is passed on line by line with its name. When one fails, the others are ended, and the
/// exit code is that of the first failure (128 + signal if a signal ended it). Processes read from an empty input.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of workers
    #[arg(short = 'n', long, value_name = "WORKERS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Number of servers
    #[arg(short, long, value_name = "SERVERS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(kv_core::limits::SLOTS)))]
    servers: u16,
    /// Transport between the processes
    #[arg(long, value_name = "NAME", value_parser = |name: &str| kv::transport::find(name))]
    transport: Option<&'static str>,
    /// Environment variable for every process (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = plan::parse_variable)]
    env: Vec<Variable>,
    /// Environment variable for the workers
    #[arg(long, value_name = "NAME=VALUE", value_parser = plan::parse_variable)]
    env_worker: Vec<Variable>,
    /// Environment variable for the servers
    #[arg(long, value_name = "NAME=VALUE", value_parser = plan::parse_variable)]
    env_server: Vec<Variable>,
    /// No colours (they are only used on a terminal, and not when NO_COLOR is set)
    #[arg(long)]
    no_color: bool,
    /// What goes to the standard output
    #[arg(long, value_enum, default_value_t = Stdout::Labelled)]
    stdout: Stdout,
    /// How long a process may take to end when it is told to
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = duration)]
    grace: Duration,
    /// How long the scheduler may take to say where it listens
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = duration)]
    startup_timeout: Duration,
    /// Print the commands and their environment instead of running them
    #[arg(long)]
    dry_run: bool,
    /// The program that is run with `scheduler` and `server`, instead of this one
    #[arg(long, value_name = "PROGRAM", hide = true)]
    kv: Option<OsString>,
    /// The program that is every worker, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let max = kv_core::limits::TIMEOUT_MAX;
    kv::config::duration(text).filter(|d| *d <= max).ok_or("expected a duration such as 10s, 500ms or plain seconds")
}

/// The subcommand.
pub(crate) fn main(args: Args) -> ExitCode {
    let dry_run = args.dry_run;
    let plan = match args.into_plan() {
        Ok(plan) => plan,
        Err(error) => return crate::fail(&error),
    };
    if dry_run {
        // A reader that has seen enough is no failure.
        let _ = std::io::stdout().write_all(plan.dry_run().as_bytes());
        return ExitCode::SUCCESS;
    }
    ExitCode::from(run(plan))
}

impl Args {
    fn into_plan(self) -> Result<LaunchPlan, Error> {
        let kv = match self.kv {
            Some(program) => program,
            None => this_program()?,
        };
        let mut command = self.command.into_iter();
        let worker = Program { program: command.next().unwrap_or_default(), args: command.collect() };
        let mut plan = LaunchPlan::new(self.workers, self.servers, &kv, worker);
        plan.transport = transport_of_processes(self.transport)?;
        plan.env = self.env;
        plan.env_worker = self.env_worker;
        plan.env_server = self.env_server;
        plan.stdout = self.stdout;
        plan.grace = self.grace;
        plan.startup_timeout = self.startup_timeout;
        let color = !self.no_color && color_allowed(&|name| std::env::var_os(name));
        plan.color_stdout = color && std::io::stdout().is_terminal();
        plan.color_stderr = color && std::io::stderr().is_terminal();
        Ok(plan)
    }
}

/// This program, to be started again.
pub(crate) fn this_program() -> Result<OsString, Error> {
    let exe = std::env::current_exe();
    exe.map(Into::into).map_err(|error| Error::Config(format!("cannot tell which program this is: {error}")))
}

/// The transport of a job that is launched here: that of the flag, or the one the processes will find in their
/// environment. None when they use the default, or a name that they will complain about.
///
/// # Errors
/// It is none for processes that are started one by one.
pub(crate) fn transport_of_processes(flag: Option<&'static str>) -> Result<Option<&'static str>, Error> {
    let inherited = || Settings::load(Settings::default(), None, &process_env).transport;
    let transport = match flag {
        Some(name) => Some(name),
        None => inherited().and_then(|name| transport::find(&name).ok()),
    };
    let instead = match transport.map(transport::addressing) {
        Some(Addressing::Rank) => "mpirun starts the processes of an MPI job, see docs/launching.md",
        Some(Addressing::Job) => "its nodes are threads of one process; kv train --transport memory runs such a job",
        _ => return Ok(transport),
    };
    let found = transport.unwrap_or_default();
    Err(Error::Config(format!(
        "transport (--transport, KV_TRANSPORT): expected one between processes that launch starts, found {found:?} \
         ({instead})"
    )))
}

/// Whether the environment lets a terminal be written to in colour.
fn color_allowed(lookup: &dyn Fn(&str) -> Option<OsString>) -> bool {
    lookup("NO_COLOR").is_none_or(|value| value.is_empty()) && lookup("TERM").is_none_or(|value| value != "dumb")
}

/// Runs the job and returns its exit code: 0 when every worker ended with 0, else the code of the first failure in
/// time, 128 + signal when a signal ended a process or this one was told to end.
///
/// Every process that was started has ended and is reaped when this returns. To be called on the main thread: kv's
/// processes end when the thread that started them does (see [`leash`]).
pub(crate) fn run(plan: LaunchPlan) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the runtime: {error}");
            return 1;
        }
    };
    runtime.block_on(supervise::supervise(plan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_can_forbid_colours() {
        let allowed = |name: &str, value: &str| color_allowed(&|asked| (asked == name).then(|| value.into()));
        assert!(color_allowed(&|_| None));
        assert!(!allowed("NO_COLOR", "1"));
        assert!(allowed("NO_COLOR", ""));
        assert!(!allowed("TERM", "dumb"));
        assert!(allowed("TERM", "xterm"));
    }
}
