//! Checks of the scheduler's address: is it there, and of the kind that the transport needs?

use kv_core::cluster::Role;

use super::address::{check_socket, socket_text};
use super::fields::scheduler_text;
use super::resolve::Check;
use super::{HostPort, SchedulerAddress, Settings};
use crate::transport::{self, Addressing};

/// The setting with its flag and its own variable.
const FIELD: &str = "scheduler (--scheduler, KV_SCHEDULER)";

impl Check {
    /// Where the scheduler of `job` is, over the transport of this name.
    pub(super) fn scheduler(
        &mut self,
        settings: &Settings,
        role: Role,
        transport: &str,
        job: &str,
    ) -> Option<SchedulerAddress> {
        match transport::addressing(transport) {
            Addressing::HostPort => self.host_port(settings, role, transport).map(SchedulerAddress::Tcp),
            Addressing::Socket => self.socket(settings, role, transport).map(SchedulerAddress::Socket),
            // Addresses mean nothing there.
            Addressing::Rank => Some(SchedulerAddress::RankZero),
            Addressing::Job => Some(SchedulerAddress::Job(job.to_owned())),
        }
    }

    fn host_port(&mut self, settings: &Settings, role: Role, transport: &str) -> Option<HostPort> {
        let host = settings.scheduler_host.clone();
        let port = settings.scheduler_port;
        if let Some(path) = &settings.scheduler_socket {
            let expected = format!("host:port, which is where a scheduler listens with transport {transport}");
            self.wrong(FIELD, &expected, &format!("{}, which is for transport zmq-ipc", socket_text(path)));
            return None;
        }
        if role == Role::Scheduler {
            return Some(HostPort { host: host?, port: port.filter(|port| *port != 0)? });
        }
        if host.is_none() {
            self.wrong("scheduler (--scheduler, KV_SCHEDULER or DMLC_PS_ROOT_URI)", "the scheduler's host", "nothing");
        }
        match port {
            None => {
                let name = "scheduler (--scheduler, KV_SCHEDULER or DMLC_PS_ROOT_PORT)";
                self.wrong(name, "the scheduler's port", "nothing");
            }
            Some(0) => {
                let name = "scheduler (--scheduler, KV_SCHEDULER or DMLC_PS_ROOT_PORT)";
                self.wrong(name, "the port the scheduler listens on", "port 0, which only the scheduler can take");
            }
            Some(_) => {}
        }
        Some(HostPort { host: host?, port: port? })
    }

    fn socket(&mut self, settings: &Settings, role: Role, transport: &str) -> Option<String> {
        let Some(path) = settings.scheduler_socket.clone() else {
            let found = scheduler_text(settings);
            // A scheduler that was told nothing makes a folder of its own.
            if found.is_some() || role != Role::Scheduler {
                let expected = format!("ipc:///path, the scheduler's socket with transport {transport}");
                self.wrong(FIELD, &expected, found.as_deref().unwrap_or("nothing"));
            }
            return None;
        };
        if let Err(problem) = check_socket(&path) {
            self.problems.push(format!("{FIELD}: {problem}"));
        }
        Some(path)
    }

    /// The port to listen on.
    pub(super) fn port(&mut self, settings: &Settings, role: Role) -> u16 {
        if role != Role::Scheduler {
            return settings.port.or(settings.node_port).unwrap_or(0);
        }
        if settings.scheduler_socket.is_some() {
            // Of an address of the wrong kind, another error says so.
            return 0;
        }
        settings.port.or(settings.scheduler_port).unwrap_or_else(|| {
            self.wrong(
                "port (--port, KV_PORT or DMLC_PS_ROOT_PORT)",
                "the port the scheduler listens on, or 0 for any free one",
                "nothing",
            );
            0
        })
    }
}
