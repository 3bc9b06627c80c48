//! Roles by rank: a program that `mpirun` or `srun` has started many times finds its place by itself.
//!
//! Rank 0 is the scheduler, the next ranks are the servers, the others the workers. That is so when it is asked for
//! (`by_rank`), and over MPI, unless a role is set or the job is made of several programs: then the others of them say
//! what they are, as `kv scheduler` and `kv server` do, and this one is a worker.

mod launcher;
#[cfg(test)]
mod tests;

use kv_core::cluster::Role;

use super::Settings;
use crate::transport::{self, Addressing};
use launcher::Ranked;

/// The port that the scheduler takes by rank when none is set: all ranks must know it before anybody runs.
const PORT: u16 = 9091;

const FIELD: &str = "by_rank (--by-rank, KV_BY_RANK; asked for by transport mpi)";

/// A place in the job.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    role: Role,
    /// Within the role.
    rank: u16,
    workers: u16,
}

impl Settings {
    /// These settings with the place in the job that `lookup`, the environment, gives by rank, when that is asked for.
    ///
    /// What is wrong is added to the problems. A process that has no place is made a worker, so that whatever it does
    /// next says what is wrong.
    pub(super) fn placed(mut self, lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let addressing = transport::addressing(self.transport.as_deref().unwrap_or(transport::DEFAULT));
        let asked = self.by_rank.unwrap_or(addressing == Addressing::Rank);
        if self.role.is_some() || !asked {
            return self;
        }
        if let Err(problem) = self.place(addressing, lookup) {
            self.problems.push(problem);
            self.role.get_or_insert(Role::Worker);
            // Stand-ins, so that the one cause is not followed by what comes of it.
            if addressing == Addressing::HostPort && self.scheduler_socket.is_none() {
                self.scheduler_host.get_or_insert_with(|| launcher::LOOPBACK.to_owned());
                self.scheduler_port.get_or_insert(PORT);
            }
        }
        self
    }

    fn place(&mut self, addressing: Addressing, lookup: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
        if addressing == Addressing::Job {
            return Err(format!("{FIELD}: expected a transport between processes, found memory"));
        }
        let ranked = Ranked::find(lookup)?.ok_or_else(|| {
            format!(
                "{FIELD}: expected a process that mpirun, mpiexec or srun has started, with {} in its environment, \
                 found none of these; processes started by other means say what they are with KV_ROLE",
                launcher::RANK_VARIABLES.join(", ")
            )
        })?;
        if ranked.several_programs && self.by_rank != Some(true) {
            self.role = Some(Role::Worker);
            return Ok(());
        }
        let servers = self.num_servers.ok_or_else(|| {
            "num_servers (--servers, KV_NUM_SERVERS or DMLC_NUM_SERVER): expected the number of servers, without which \
             a rank is no role, found nothing"
                .to_owned()
        })?;
        let place = place(ranked.rank, ranked.size, servers)?;
        if let Some(found) = self.num_workers.filter(|found| *found != place.workers) {
            return Err(format!(
                "num_workers (--workers, KV_NUM_WORKERS or DMLC_NUM_WORKER): expected {}, which is what {} processes \
                 less a scheduler and {servers} servers are, found {found}",
                place.workers, ranked.size
            ));
        }
        (self.role, self.num_workers) = (Some(place.role), Some(place.workers));
        self.rank = (place.role != Role::Scheduler).then_some(place.rank);
        self.find_scheduler(addressing, ranked.first_host)
    }

    /// All ranks must know where the scheduler is before it runs.
    fn find_scheduler(&mut self, addressing: Addressing, first_host: Option<String>) -> Result<(), String> {
        const FIELD: &str = "scheduler (--scheduler, KV_SCHEDULER)";
        match addressing {
            // Of an address of the wrong kind, another error says so.
            Addressing::HostPort if self.scheduler_socket.is_none() => {
                if self.scheduler_host.is_none() {
                    self.scheduler_host = Some(first_host.ok_or_else(|| {
                        format!(
                            "{FIELD}: expected host:port of rank 0, because the processes are on several hosts and \
                             the launcher does not say which is the first, found nothing"
                        )
                    })?);
                }
                self.scheduler_port.get_or_insert(PORT);
                Ok(())
            }
            Addressing::Socket if self.scheduler_socket.is_none() => {
                Err(format!("{FIELD}: expected ipc:///path, the same for all ranks, found nothing"))
            }
            _ => Ok(()),
        }
    }
}

/// The place of a rank: scheduler, then servers, then workers.
fn place(rank: u32, size: u32, servers: u16) -> Result<Place, String> {
    let workers = size.checked_sub(1 + u32::from(servers)).filter(|workers| *workers > 0);
    let Some(workers) = workers else {
        return Err(format!(
            "{FIELD}: expected at least {} processes (a scheduler, {servers} servers and a worker), found {size}",
            u32::from(servers) + 2
        ));
    };
    let (role, first) = match rank {
        0 => (Role::Scheduler, 0),
        _ if rank <= u32::from(servers) => (Role::Server, 1),
        _ => (Role::Worker, 1 + u32::from(servers)),
    };
    let number = |found: u32, what: &str| {
        u16::try_from(found).map_err(|_| format!("{FIELD}: expected at most {} {what}, found {found}", u16::MAX))
    };
    Ok(Place { role, rank: number(rank - first, "ranks")?, workers: number(workers, "workers")? })
}
