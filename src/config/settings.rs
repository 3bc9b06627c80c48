//! Settings as they are found: each may be missing, and sources merge.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use kv_core::cluster::{Role, WorkerLoss};

use super::fields::{FIELDS, FOREIGN};

/// Settings of one source (flags, environment, file), or several merged. See the [module](super).
///
/// What could not be understood is kept in [`problems`](Self::problems), so that [`resolve`](Self::resolve) can report
/// everything at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What this node does.
    pub role: Option<Role>,
    /// Whether a process that `mpirun` or `srun` has started takes role, rank and the number of workers from its rank:
    /// scheduler, then servers, then workers. Without a role, and over MPI, it does.
    pub by_rank: Option<bool>,
    /// Host of the scheduler.
    pub scheduler_host: Option<String>,
    /// Port of the scheduler.
    pub scheduler_port: Option<u16>,
    /// Path of the scheduler's socket, for the transport `zmq-ipc`; an address is this or host and port.
    pub scheduler_socket: Option<String>,
    /// Number of workers the job starts with.
    pub num_workers: Option<u16>,
    /// Number of servers.
    pub num_servers: Option<u16>,
    /// Name of the job; nodes of another job are refused.
    pub job: Option<String>,
    /// Address to listen on.
    pub bind: Option<IpAddr>,
    /// Host that the other nodes reach this one by.
    pub advertise: Option<String>,
    /// Network interface to take the own address from.
    pub interface: Option<String>,
    /// Port to listen on; 0 takes a free one.
    pub port: Option<u16>,
    /// `PORT` and `DMLC_PORT`: as [`port`](Self::port), but not for the scheduler, which in ps-lite has a variable of
    /// its own.
    pub node_port: Option<u16>,
    /// The rank this node asks for.
    pub rank: Option<u16>,
    /// Name of the transport.
    pub transport: Option<String>,
    /// Whether to listen with ZeroMQ on addresses that other hosts can reach, although a hostile peer can abort the
    /// process.
    pub trust_network: Option<bool>,
    /// Deadline of every wait.
    pub timeout: Option<Duration>,
    /// Deadline for the whole job to come together.
    pub startup_timeout: Option<Duration>,
    /// How long a node looks for news before its thread sleeps.
    pub spin: Option<Duration>,
    /// How often a node sends a heartbeat.
    pub heartbeat_interval: Option<Duration>,
    /// A node not heard of for this long is lost.
    pub dead_after: Option<Duration>,
    /// What happens when a worker is lost.
    pub worker_loss: Option<WorkerLoss>,
    /// Values are cut into chunks of at most this many bytes.
    pub chunk_bytes: Option<u64>,
    /// Whether sums are formed in rank order.
    pub deterministic: Option<bool>,
    /// Requests a worker may have unanswered at one server.
    pub window_messages: Option<u64>,
    /// Bytes of values a worker may have unanswered at one server.
    pub window_bytes: Option<u64>,
    /// Whether the scheduler runs behind an address that is not its machine's, so that it has to listen on all.
    pub kubernetes: Option<bool>,
    /// What to log, in the form of a log filter.
    pub log: Option<String>,
    /// What was found and could not be understood.
    pub problems: Vec<String>,
}

impl Settings {
    /// These settings, and `fallback`'s where these have none. Problems of both are kept.
    #[must_use]
    pub fn or(self, fallback: Self) -> Self {
        let fallback = fallback.without_another_address(&self);
        let mut problems = self.problems;
        problems.extend(fallback.problems);
        Self {
            role: self.role.or(fallback.role),
            by_rank: self.by_rank.or(fallback.by_rank),
            scheduler_host: self.scheduler_host.or(fallback.scheduler_host),
            scheduler_port: self.scheduler_port.or(fallback.scheduler_port),
            scheduler_socket: self.scheduler_socket.or(fallback.scheduler_socket),
            num_workers: self.num_workers.or(fallback.num_workers),
            num_servers: self.num_servers.or(fallback.num_servers),
            job: self.job.or(fallback.job),
            bind: self.bind.or(fallback.bind),
            advertise: self.advertise.or(fallback.advertise),
            interface: self.interface.or(fallback.interface),
            port: self.port.or(fallback.port),
            node_port: self.node_port.or(fallback.node_port),
            rank: self.rank.or(fallback.rank),
            transport: self.transport.or(fallback.transport),
            trust_network: self.trust_network.or(fallback.trust_network),
            timeout: self.timeout.or(fallback.timeout),
            startup_timeout: self.startup_timeout.or(fallback.startup_timeout),
            spin: self.spin.or(fallback.spin),
            heartbeat_interval: self.heartbeat_interval.or(fallback.heartbeat_interval),
            dead_after: self.dead_after.or(fallback.dead_after),
            worker_loss: self.worker_loss.or(fallback.worker_loss),
            chunk_bytes: self.chunk_bytes.or(fallback.chunk_bytes),
            deterministic: self.deterministic.or(fallback.deterministic),
            window_messages: self.window_messages.or(fallback.window_messages),
            window_bytes: self.window_bytes.or(fallback.window_bytes),
            kubernetes: self.kubernetes.or(fallback.kubernetes),
            log: self.log.or(fallback.log),
            problems,
        }
    }

    /// These settings without a scheduler's address of another kind than `first` has: an address is taken from one
    /// source, only host and port may come from two.
    fn without_another_address(mut self, first: &Self) -> Self {
        if first.scheduler_socket.is_some() {
            (self.scheduler_host, self.scheduler_port) = (None, None);
        }
        if first.scheduler_host.is_some() || first.scheduler_port.is_some() {
            self.scheduler_socket = None;
        }
        self
    }

    /// Flags (what the caller has set), then the environment, then the file that `file` or else the variable
    /// `KV_CONFIG` names. Where roles go by rank, the place that the launcher has given this process.
    #[must_use]
    pub fn load(flags: Self, file: Option<&Path>, lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let settings = flags.or(Self::from_env(lookup));
        let settings =
            match file.map(Path::to_owned).or_else(|| lookup("KV_CONFIG").filter(|p| !p.is_empty()).map(Into::into)) {
                Some(path) => settings.or(Self::from_file(&path)),
                None => settings,
            };
        settings.placed(lookup)
    }

    /// Reads the environment through `lookup`: `KV_*` before `DMLC_*` and `PS_*`. An empty variable counts as unset.
    #[must_use]
    pub fn from_env(lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let (mut own, mut foreign) = (Self::default(), Self::default());
        for field in FIELDS {
            own.take(field.variable, lookup(field.variable), field.expected, field.set);
        }
        for variable in FOREIGN {
            foreign.take(variable.name, lookup(variable.name), variable.expected, variable.set);
        }
        own.or(foreign)
    }

    /// Reads a file in TOML; its keys are the names of the fields, and `scheduler`.
    #[must_use]
    pub fn from_file(path: &Path) -> Self {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::from_toml(&text, &path.display().to_string()),
            Err(error) => {
                let problem = format!("{}: expected a readable file, found: {error}", path.display());
                Self { problems: vec![problem], ..Self::default() }
            }
        }
    }

    /// Reads the text of a configuration file; `source` names it in problems.
    #[must_use]
    pub fn from_toml(text: &str, source: &str) -> Self {
        let mut settings = Self::default();
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                settings.problems.push(format!("{source}: expected TOML, found: {}", error.to_string().trim_end()));
                return settings;
            }
        };
        for (key, value) in &table {
            let name = format!("{source}: {key}");
            let Some(field) = FIELDS.iter().find(|field| field.name == key) else {
                let names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
                settings.problems.push(format!("{name}: expected one of {}, found another name", names.join(", ")));
                continue;
            };
            match value {
                toml::Value::String(text) => settings.take(&name, Some(text.clone()), field.expected, field.set),
                toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
                    settings.take(&name, Some(value.to_string()), field.expected, field.set);
                }
                other => {
                    let found =
                        format!("{name}: expected {}, found a value of type {}", field.expected, other.type_str());
                    settings.problems.push(found);
                }
            }
        }
        settings
    }

    /// The text of a configuration file that says the same.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let entries = FIELDS.iter().filter_map(|field| Some((field.name, (field.get)(self)?)));
        entries.map(|(name, text)| format!("{name} = {}\n", toml::Value::String(text))).collect()
    }

    /// The environment that says the same, in `KV_*` variables.
    #[must_use]
    pub fn to_env(&self) -> BTreeMap<&'static str, String> {
        FIELDS.iter().filter_map(|field| Some((field.variable, (field.get)(self)?))).collect()
    }

    fn take(&mut self, name: &str, found: Option<String>, expected: &str, set: fn(&mut Self, &str) -> Option<()>) {
        let Some(found) = found else { return };
        let text = found.trim();
        if !text.is_empty() && set(self, text).is_none() {
            self.problems.push(format!("{name}: expected {expected}, found {}", quoted(text)));
        }
    }
}

/// Looks a variable up in the environment of this process. For [`Settings::from_env`].
#[must_use]
pub fn process_env(name: &str) -> Option<String> {
    // What is not UTF-8 becomes text that no parser takes, and so is reported with the variable's name.
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// What was found, made safe to print and cut to a length that an error can carry.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}
