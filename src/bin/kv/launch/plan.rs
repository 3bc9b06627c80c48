//! Which processes make the job, and what each is given. Nothing is started here.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::Duration;

use kv_core::cluster::{NodeId, Role};

use super::leash::LAUNCHER_PID;

/// A program and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
}

/// An environment variable.
pub(crate) type Variable = (OsString, OsString);

/// What is written to the standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Stdout {
    /// The standard output of every process, each line with the name of its process
    Labelled,
    /// The standard output of worker 0 byte for byte; everything else goes to the standard error
    #[value(name = "worker-0")]
    Worker0,
}

/// A job to run on this machine.
#[derive(Clone, Debug)]
pub(crate) struct LaunchPlan {
    pub(crate) workers: u16,
    pub(crate) servers: u16,
    /// Its first line on the standard output is `listening on tcp://host:port`.
    pub(crate) scheduler: Program,
    pub(crate) server: Program,
    pub(crate) worker: Program,
    pub(crate) transport: Option<&'static str>,
    pub(crate) env: Vec<Variable>,
    pub(crate) env_worker: Vec<Variable>,
    pub(crate) env_server: Vec<Variable>,
    pub(crate) color_stdout: bool,
    pub(crate) color_stderr: bool,
    pub(crate) stdout: Stdout,
    /// Worker 0 writes its standard error to the terminal itself, so that it can draw there.
    pub(crate) worker_0_on_terminal: bool,
    /// Time between being told to end and being killed.
    pub(crate) grace: Duration,
    /// Time in which the scheduler says where it listens.
    pub(crate) startup_timeout: Duration,
    /// Name of the job, different for each launch, so that a left-over process of another one is refused.
    pub(crate) job: String,
}

/// One process of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) role: Role,
    pub(crate) rank: u16,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Scheduler => f.write_str("scheduler"),
            role => write!(f, "{role} {}", self.rank),
        }
    }
}

/// Variables that decide a node's place in the job or its address. Launch sets some of them; the others would
/// overrule those if a process inherited them.
const PLACE: &[&str] = &[
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
    "DMLC_RANK",
    "DMLC_NODE_HOST",
    "DMLC_INTERFACE",
    "DMLC_PORT",
    "DMLC_USE_KUBERNETES",
    "PORT",
    "KV_ROLE",
    "KV_SCHEDULER",
    "KV_NUM_WORKERS",
    "KV_NUM_SERVERS",
    "KV_JOB",
    "KV_RANK",
    "KV_BIND",
    "KV_ADVERTISE",
    "KV_INTERFACE",
    "KV_PORT",
    "KV_NODE_PORT",
    "KV_KUBERNETES",
    LAUNCHER_PID,
];

/// Where the job runs.
const THIS_MACHINE: &str = "127.0.0.1";

impl LaunchPlan {
    /// A plan in which `kv` is the program with the subcommands `scheduler` and `server`.
    pub(crate) fn new(workers: u16, servers: u16, kv: &OsStr, worker: Program) -> Self {
        // Without randomness the process id still tells this job from others that run now.
        let job =
            NodeId::random().map_or_else(|_| format!("launch-{}", std::process::id()), |id| format!("launch-{id}"));
        let subcommand =
            |args: &[&str]| Program { program: kv.to_owned(), args: args.iter().map(Into::into).collect() };
        Self {
            workers,
            servers,
            scheduler: subcommand(&["scheduler", "--port", "0"]),
            server: subcommand(&["server"]),
            worker,
            transport: None,
            env: Vec::new(),
            env_worker: Vec::new(),
            env_server: Vec::new(),
            color_stdout: false,
            color_stderr: false,
            stdout: Stdout::Labelled,
            worker_0_on_terminal: false,
            grace: Duration::from_secs(5),
            startup_timeout: Duration::from_secs(30),
            job,
        }
    }

    pub(super) fn scheduler_node() -> Node {
        Node { role: Role::Scheduler, rank: 0 }
    }

    /// Servers, then workers: the order in which they are started.
    pub(super) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        let servers = (0..self.servers).map(|rank| Node { role: Role::Server, rank });
        servers.chain((0..self.workers).map(|rank| Node { role: Role::Worker, rank }))
    }

    pub(super) fn program(&self, node: Node) -> &Program {
        match node.role {
            Role::Scheduler => &self.scheduler,
            Role::Server => &self.server,
            Role::Worker | Role::Observer => &self.worker,
        }
    }

    /// The variables of a node whose scheduler listens on `host` and `port`.
    pub(super) fn environment(&self, node: Node, host: &str, port: &str) -> Vec<Variable> {
        let for_role: &[Variable] = match node.role {
            Role::Server => &self.env_server,
            Role::Worker => &self.env_worker,
            Role::Scheduler | Role::Observer => &[],
        };
        let mut variables: Vec<Variable> = self.env.iter().chain(for_role).cloned().collect();
        let mut set = |name: &str, value: String| variables.push((name.into(), value.into()));
        set("DMLC_ROLE", node.role.to_string());
        set("DMLC_PS_ROOT_URI", host.to_owned());
        // The scheduler takes a free port, and says which.
        if node.role != Role::Scheduler {
            set("DMLC_PS_ROOT_PORT", port.to_owned());
            set("DMLC_RANK", node.rank.to_string());
        }
        set("DMLC_NUM_WORKER", self.workers.to_string());
        set("DMLC_NUM_SERVER", self.servers.to_string());
        set("DMLC_NODE_HOST", THIS_MACHINE.to_owned());
        set("KV_JOB", self.job.clone());
        if let Some(transport) = self.transport {
            set("KV_TRANSPORT", transport.to_owned());
        }
        set(LAUNCHER_PID, std::process::id().to_string());
        variables
    }

    /// The command that starts a node.
    pub(super) fn command(&self, node: Node, host: &str, port: &str) -> tokio::process::Command {
        let Program { program, args } = self.program(node);
        let mut command = tokio::process::Command::new(program);
        command.args(args);
        for name in PLACE {
            command.env_remove(name);
        }
        command.envs(self.environment(node, host, port));
        command
    }

    pub(super) fn scheduler_command(&self) -> tokio::process::Command {
        self.command(Self::scheduler_node(), THIS_MACHINE, "")
    }

    /// The commands with their environment, as lines that a shell would run.
    pub(super) fn dry_run(&self) -> String {
        let mut text = String::new();
        for node in std::iter::once(Self::scheduler_node()).chain(self.nodes()) {
            let Program { program, args } = self.program(node);
            // The launcher's own id means nothing to processes that somebody else starts.
            let variables =
                self.environment(node, THIS_MACHINE, "PORT").into_iter().filter(|(name, _)| name != LAUNCHER_PID);
            let variables = variables.map(|(name, value)| format!("{}={}", name.display(), quoted(&value)));
            let words = std::iter::once(program).chain(args).map(|word| quoted(word));
            let line: Vec<String> = variables.chain(words).collect();
            text.push_str(&format!("# {node}\n{}\n", line.join(" ")));
        }
        text
    }
}

/// Parses `NAME=VALUE`.
pub(super) fn parse_variable(text: &str) -> Result<Variable, String> {
    match text.split_once('=') {
        Some((name, _)) if PLACE.contains(&name) => Err(format!("launch itself sets {name} for every process")),
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// A word as a shell reads it.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        let quoted = |word: &str| quoted(OsStr::new(word));
        assert_eq!(quoted("a-b/c.d"), "a-b/c.d");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }

    #[test]
    fn variables_have_names_that_launch_does_not_set() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(parse_variable("A="), Ok(("A".into(), "".into())));
        assert!(parse_variable("A").is_err());
        assert!(parse_variable("=b").is_err());
        assert!(parse_variable("DMLC_RANK=3").unwrap_err().contains("DMLC_RANK"));
    }

    #[test]
    fn every_variable_that_launch_sets_cannot_be_inherited() {
        let worker = Program { program: "true".into(), args: Vec::new() };
        let plan = LaunchPlan::new(2, 1, OsStr::new("kv"), worker);
        for node in std::iter::once(LaunchPlan::scheduler_node()).chain(plan.nodes()) {
            for (name, _) in plan.environment(node, THIS_MACHINE, "1") {
                assert!(PLACE.iter().any(|place| name == *place), "{name:?}");
            }
        }
    }
}
