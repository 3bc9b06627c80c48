//! From settings to a configuration: defaults, checks across fields, and one error for all that is wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use kv_core::Error;
use kv_core::cluster::{JobConfig, Rank, Role};
use kv_core::driver::WindowLimits;
use kv_core::limits;

use super::interface::{self, Interface};
use super::settings::quoted;
use super::{NodeConfig, Settings};
use crate::transport::{self, Addressing};

/// Longest spin: more would only burn a core.
const SPIN_MAX: Duration = Duration::from_secs(1);

/// Default deadline for a job to come together.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest name of a job in bytes: it travels in every handshake.
const JOB_NAME_BYTES_MAX: usize = 255;

impl Settings {
    /// Adds the defaults and checks what a node of this role needs.
    ///
    /// # Errors
    /// [`Error::Config`] with every problem there is; each names the field with its flag and variables, what was
    /// expected and what was found.
    pub fn resolve(self, role: Role) -> Result<NodeConfig, Error> {
        self.resolve_on(role, &interface::of_this_machine)
    }

    /// As [`resolve`](Self::resolve), on a machine with these interfaces.
    pub(super) fn resolve_on(
        self,
        role: Role,
        interfaces: &dyn Fn() -> std::io::Result<Vec<Interface>>,
    ) -> Result<NodeConfig, Error> {
        let mut check = Check { problems: self.problems.clone() };
        // An observer may be started from the environment of any node.
        if let Some(found) = self.role.filter(|found| *found != role && role != Role::Observer) {
            check.wrong(
                "role (KV_ROLE, DMLC_ROLE)",
                &format!("{role}, which is what this program is"),
                &found.to_string(),
            );
        }
        let transport = self.transport.as_deref().unwrap_or(transport::DEFAULT);
        let addressing = transport::addressing(transport);
        let (listen, advertise) = match addressing {
            Addressing::HostPort => self.listen(&mut check, role, interfaces),
            Addressing::Socket | Addressing::Rank | Addressing::Job => ((Ipv4Addr::LOCALHOST, 0).into(), None),
        };
        // Under MPI nobody needs to be told how many there are.
        let must_count = role == Role::Scheduler && addressing != Addressing::Rank;
        let shared = check.shared(&self);
        let window = check.window(&self);
        let job = check.job(self.job.clone());
        let config = NodeConfig {
            role,
            scheduler: check.scheduler(&self, role, transport, &job),
            num_workers: check.count(self.num_workers, Count::Workers, must_count),
            num_servers: check.count(self.num_servers, Count::Servers, must_count),
            job,
            listen,
            advertise,
            rank: self.rank.map(Rank),
            transport: check.transport(transport, role),
            trust_network: self.trust_network.unwrap_or(false),
            spin: check.spin(self.spin),
            timeout: check.duration("timeout (--timeout, KV_TIMEOUT)", self.timeout, limits::TIMEOUT_DEFAULT),
            startup_timeout: check.duration(
                "startup_timeout (--startup-timeout, KV_STARTUP_TIMEOUT)",
                self.startup_timeout,
                STARTUP_TIMEOUT,
            ),
            shared,
            deterministic: self.deterministic.unwrap_or(false),
            window,
            log: self.log.clone().unwrap_or_else(|| "warn".to_owned()),
        };
        check.members(&config);
        check.verdict(config)
    }

    /// Where to listen, and the host by which the others are told to find this node.
    fn listen(
        &self,
        check: &mut Check,
        role: Role,
        interfaces: &dyn Fn() -> std::io::Result<Vec<Interface>>,
    ) -> (SocketAddr, Option<String>) {
        let address = self.interface.as_ref().and_then(|name| check.interface(name, interfaces));
        let bind = self.bind_address(role, address);
        let advertise = self.advertise.clone().or_else(|| {
            let own = address.or(Some(bind).filter(|ip| !ip.is_unspecified()));
            own.map(|ip| ip.to_string())
        });
        (SocketAddr::new(bind, check.port(self, role)), advertise)
    }

    /// Where to listen: as told; else where the others are told to look; else, on one machine, not where the rest of
    /// the world can reach it.
    fn bind_address(&self, role: Role, interface: Option<IpAddr>) -> IpAddr {
        let scheduler = self.scheduler_host.as_deref();
        let scheduler_ip = scheduler.and_then(|host| host.parse::<IpAddr>().ok());
        let all = match scheduler_ip {
            Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        if let Some(bind) = self.bind {
            return bind;
        }
        // The address in the scheduler's name is a service's there, and cannot be listened on.
        if role == Role::Scheduler && self.kubernetes == Some(true) {
            return Ipv4Addr::UNSPECIFIED.into();
        }
        if let Some(address) = interface {
            return address;
        }
        if let Some(host) = &self.advertise {
            return host.parse().unwrap_or(all);
        }
        match scheduler_ip {
            Some(ip) if role == Role::Scheduler || ip.is_loopback() => ip,
            None if scheduler == Some("localhost") => Ipv4Addr::LOCALHOST.into(),
            // Nobody was told where it is: a job of this machine.
            None if scheduler.is_none() && role == Role::Scheduler => Ipv4Addr::LOCALHOST.into(),
            _ => all,
        }
    }
}

/// What is counted.
#[derive(Clone, Copy)]
enum Count {
    Workers,
    Servers,
}

/// Collects problems; every check goes on with a stand-in, so that the next one can find more.
pub(super) struct Check {
    pub(super) problems: Vec<String>,
}

impl Check {
    pub(super) fn wrong(&mut self, name: &str, expected: &str, found: &str) {
        self.problems.push(format!("{name}: expected {expected}, found {found}"));
    }

    fn count(&mut self, found: Option<u16>, what: Count, required: bool) -> Option<u16> {
        let (name, max) = match what {
            Count::Workers => ("num_workers (--num-workers, KV_NUM_WORKERS or DMLC_NUM_WORKER)", limits::MEMBERS_MAX),
            Count::Servers => {
                ("num_servers (--num-servers, KV_NUM_SERVERS or DMLC_NUM_SERVER)", usize::from(limits::SLOTS))
            }
        };
        let expected = format!("a number from 1 to {max}");
        match found {
            Some(n) if n == 0 || usize::from(n) > max => self.wrong(name, &expected, &n.to_string()),
            // The others learn the numbers from the scheduler.
            None if required => self.wrong(name, &expected, "nothing"),
            _ => {}
        }
        found
    }

    fn members(&mut self, config: &NodeConfig) {
        let sum = usize::from(config.num_workers.unwrap_or(0)) + usize::from(config.num_servers.unwrap_or(0));
        if sum > limits::MEMBERS_MAX {
            let expected = format!("at most {} together", limits::MEMBERS_MAX);
            self.wrong("num_workers and num_servers", &expected, &sum.to_string());
        }
    }

    fn job(&mut self, found: Option<String>) -> String {
        let job = found.unwrap_or_else(|| "kv".to_owned());
        if job.is_empty() || job.len() > JOB_NAME_BYTES_MAX || job.chars().any(char::is_control) {
            let expected = format!("a name of 1 to {JOB_NAME_BYTES_MAX} bytes without control characters");
            self.wrong("job (--job, KV_JOB)", &expected, &quoted(&job));
        }
        job
    }

    fn interface(&mut self, name: &str, all: &dyn Fn() -> std::io::Result<Vec<Interface>>) -> Option<IpAddr> {
        const FIELD: &str = "interface (--interface, KV_INTERFACE or DMLC_INTERFACE)";
        let found = match all() {
            Ok(all) => interface::address_of(name, &all),
            Err(error) => Err(format!("expected a list of this machine's interfaces, found: {error}")),
        };
        found.map_err(|problem| self.problems.push(format!("{FIELD}: {problem}"))).ok()
    }

    fn transport(&mut self, found: &str, role: Role) -> &'static str {
        const FIELD: &str = "transport (--transport, KV_TRANSPORT)";
        if role == Role::Observer && transport::addressing(found) == Addressing::Rank {
            self.wrong(FIELD, "one that a node can join from outside", &quoted(found));
        }
        transport::find(found).unwrap_or_else(|problem| {
            self.problems.push(format!("{FIELD}: {problem}"));
            ""
        })
    }

    fn duration(&mut self, name: &str, found: Option<Duration>, default: Duration) -> Duration {
        let duration = found.unwrap_or(default);
        if duration.is_zero() || duration > limits::TIMEOUT_MAX {
            let expected = format!("more than 0 and at most {:?}", limits::TIMEOUT_MAX);
            self.wrong(name, &expected, &format!("{duration:?}"));
        }
        duration
    }

    fn spin(&mut self, found: Option<Duration>) -> Duration {
        let spin = found.unwrap_or(Duration::ZERO);
        if spin > SPIN_MAX {
            self.wrong("spin (KV_SPIN)", &format!("at most {SPIN_MAX:?}"), &format!("{spin:?}"));
        }
        spin
    }

    fn shared(&mut self, settings: &Settings) -> JobConfig {
        let mut shared = JobConfig::default();
        shared.worker_loss = settings.worker_loss.unwrap_or(shared.worker_loss);
        shared.heartbeat_every = self.duration(
            "heartbeat_interval (--heartbeat-interval, KV_HEARTBEAT_INTERVAL or PS_HEARTBEAT_INTERVAL)",
            settings.heartbeat_interval,
            shared.heartbeat_every,
        );
        const DEAD_AFTER: &str = "dead_after (--dead-after, KV_DEAD_AFTER or PS_HEARTBEAT_TIMEOUT)";
        shared.dead_after = self.duration(DEAD_AFTER, settings.dead_after, shared.dead_after);
        // A node must be able to miss a heartbeat and live.
        if shared.dead_after < shared.heartbeat_every.saturating_mul(2) {
            let expected = format!("at least twice heartbeat_interval ({:?})", shared.heartbeat_every);
            self.wrong(DEAD_AFTER, &expected, &format!("{:?}", shared.dead_after));
        }
        if let Some(found) = settings.chunk_bytes {
            match u32::try_from(found) {
                Ok(n) if n % 8 == 0 && (limits::CHUNK_BYTES_MIN..=limits::CHUNK_BYTES_MAX).contains(&n) => {
                    shared.chunk_bytes = n;
                }
                _ => {
                    let (min, max) = (limits::CHUNK_BYTES_MIN, limits::CHUNK_BYTES_MAX);
                    let expected = format!("a multiple of 8 from {min} to {max}");
                    self.wrong("chunk_bytes (--chunk-bytes, KV_CHUNK_BYTES)", &expected, &found.to_string());
                }
            }
        }
        shared
    }

    fn window(&mut self, settings: &Settings) -> WindowLimits {
        let default = WindowLimits::default();
        let mut limit = |name: &str, found: Option<u64>, default: u32| {
            let found = found.unwrap_or(default.into());
            u32::try_from(found).ok().filter(|&limit| limit > 0).unwrap_or_else(|| {
                self.wrong(name, &format!("a number from 1 to {}", u32::MAX), &found.to_string());
                default
            })
        };
        WindowLimits {
            calls: limit("window_messages (KV_WINDOW_MESSAGES)", settings.window_messages, default.calls),
            bytes: limit("window_bytes (KV_WINDOW_BYTES)", settings.window_bytes, default.bytes),
        }
    }

    fn verdict(self, config: NodeConfig) -> Result<NodeConfig, Error> {
        match self.problems.as_slice() {
            [] => Ok(config),
            [one] => Err(Error::Config(one.clone())),
            many => {
                let lines: String = many.iter().map(|problem| format!("\n  - {problem}")).collect();
                Err(Error::Config(format!("{} problems:{lines}", many.len())))
            }
        }
    }
}
