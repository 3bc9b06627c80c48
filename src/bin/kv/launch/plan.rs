//! Which processes make the job, and what each is given. Nothing is started here.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::Duration;

use kv::transport::{Addressing, addressing};
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
    /// Its first line on the standard output is `listening on tcp://host:port`, or an address of another scheme.
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

/// Where the scheduler listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    HostPort(String, String),
    /// An address of another scheme, such as `ipc:///path`.
    Other(String),
}

impl Address {
    /// Finds the address in what a scheduler says first.
    pub(super) fn in_line(line: &str) -> Option<Self> {
        let address = line.strip_prefix("listening on ")?;
        if let Some((Some(host), Some(port))) = kv::config::host_port(address) {
            return Some(Self::HostPort(host, port.to_string()));
        }
        let (scheme, rest) = address.split_once("://")?;
        let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase()) && scheme != "tcp";
        (is_scheme && !rest.is_empty()).then(|| Self::Other(address.to_owned()))
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
    "KV_BY_RANK",
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

    fn addressing(&self) -> Addressing {
        addressing(self.transport.unwrap_or_default())
    }

    /// The variables of a node whose scheduler listens there; of the scheduler itself when it has not said where.
    pub(super) fn environment(&self, node: Node, scheduler: Option<&Address>) -> Vec<Variable> {
        let for_role: &[Variable] = match node.role {
            Role::Server => &self.env_server,
            Role::Worker => &self.env_worker,
            Role::Scheduler | Role::Observer => &[],
        };
        let mut variables: Vec<Variable> = self.env.iter().chain(for_role).cloned().collect();
        let mut set = |name: &str, value: String| variables.push((name.into(), value.into()));
        set("DMLC_ROLE", node.role.to_string());
        match scheduler {
            Some(Address::HostPort(host, port)) => {
                set("DMLC_PS_ROOT_URI", host.clone());
                set("DMLC_PS_ROOT_PORT", port.clone());
            }
            Some(Address::Other(address)) => set("KV_SCHEDULER", address.clone()),
            // It takes a free port, and says which.
            None if self.addressing() == Addressing::HostPort => set("DMLC_PS_ROOT_URI", THIS_MACHINE.to_owned()),
            None => {}
        }
        if node.role != Role::Scheduler {
            set("DMLC_RANK", node.rank.to_string());
        }
        set("DMLC_NUM_WORKER", self.workers.to_string());
        set("DMLC_NUM_SERVER", self.servers.to_string());
        if self.addressing() == Addressing::HostPort {
            set("DMLC_NODE_HOST", THIS_MACHINE.to_owned());
        }
        set("KV_JOB", self.job.clone());
        if let Some(transport) = self.transport {
            set("KV_TRANSPORT", transport.to_owned());
        }
        set(LAUNCHER_PID, std::process::id().to_string());
        variables
    }

    /// The command that starts a node.
    pub(super) fn command(&self, node: Node, scheduler: Option<&Address>) -> tokio::process::Command {
        let Program { program, args } = self.program(node);
        let mut command = tokio::process::Command::new(program);
        command.args(args);
        for name in PLACE {
            command.env_remove(name);
        }
        command.envs(self.environment(node, scheduler));
        command
    }

    pub(super) fn scheduler_command(&self) -> tokio::process::Command {
        self.command(Self::scheduler_node(), None)
    }

    /// The commands with their environment, as lines that a shell would run.
    pub(super) fn dry_run(&self) -> String {
        let mut text = String::new();
        let scheduler = match self.addressing() {
            Addressing::HostPort => Address::HostPort(THIS_MACHINE.to_owned(), "PORT".to_owned()),
            _ => Address::Other("ADDRESS".to_owned()),
        };
        for node in std::iter::once(Self::scheduler_node()).chain(self.nodes()) {
            let Program { program, args } = self.program(node);
            let scheduler = (node.role != Role::Scheduler).then_some(&scheduler);
            // The launcher's own id means nothing to processes that somebody else starts.
            let variables = self.environment(node, scheduler).into_iter().filter(|(name, _)| name != LAUNCHER_PID);
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
        let addresses = [None, Some(host_port("h", "1")), Some(Address::Other("ipc:///s".to_owned()))];
        for node in std::iter::once(LaunchPlan::scheduler_node()).chain(plan.nodes()) {
            for address in &addresses {
                for (name, _) in plan.environment(node, address.as_ref()) {
                    assert!(PLACE.iter().any(|place| name == *place), "{name:?}");
                }
            }
        }
    }

    fn host_port(host: &str, port: &str) -> Address {
        Address::HostPort(host.to_owned(), port.to_owned())
    }

    #[test]
    fn a_scheduler_may_listen_on_an_address_of_any_scheme() {
        let other = |address: &str| Some(Address::Other(address.to_owned()));
        for (line, expected) in [
            ("listening on tcp://127.0.0.1:4242", Some(host_port("127.0.0.1", "4242"))),
            ("listening on [::1]:1", Some(host_port("::1", "1"))),
            ("listening on ipc:///tmp/kv-1/scheduler", other("ipc:///tmp/kv-1/scheduler")),
            ("listening on mpi://0", other("mpi://0")),
            ("listening on tcp://127.0.0.1", None),
            ("listening on ipc://", None),
            ("listening on ://x", None),
            ("listening on", None),
            ("hello", None),
        ] {
            assert_eq!(Address::in_line(line), expected, "{line}");
        }
    }

    #[test]
    fn nodes_are_told_the_address_in_the_way_its_transport_takes_it() {
        let worker = Program { program: "true".into(), args: Vec::new() };
        let mut plan = LaunchPlan::new(1, 1, OsStr::new("kv"), worker);
        let value = |plan: &LaunchPlan, node: Node, address: Option<&Address>, name: &str| {
            plan.environment(node, address).into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
        };
        let server = Node { role: Role::Server, rank: 0 };
        let scheduler = LaunchPlan::scheduler_node();
        assert_eq!(value(&plan, scheduler, None, "DMLC_PS_ROOT_URI").unwrap(), THIS_MACHINE);
        assert_eq!(value(&plan, server, Some(&host_port("h", "1")), "DMLC_PS_ROOT_PORT").unwrap(), "1");
        plan.transport = Some("zmq-ipc");
        let socket = Address::Other("ipc:///s".to_owned());
        assert_eq!(value(&plan, server, Some(&socket), "KV_SCHEDULER").unwrap(), "ipc:///s");
        for (node, address) in [(scheduler, None), (server, Some(&socket))] {
            for name in ["DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NODE_HOST"] {
                assert_eq!(value(&plan, node, address, name), None, "{node}");
            }
        }
    }
}
