//! The scheduler: who takes part, who is alive, and the workers' barrier.

use std::time::{Duration, Instant};

use super::barrier::{Barrier, Entry};
use super::{Action, LinkEvent, Machine};
use crate::cluster::{Epoch, JobConfig, Member, NodeId, NodeName, Rank, Role, Roster, Standing, WorkerLoss};
use crate::error::{Error, Rejection};
use crate::limits::TIMEOUT_MAX;
use crate::placement::SlotMap;
use crate::wire::{Control, JoinRequest, Message, NodeStats, NodeStatus, StatusReport, Waiting};

/// Settings of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Workers that will come; at least one.
    pub workers: u16,
    /// Servers that will come; at least one.
    pub servers: u16,
    /// What all nodes must agree on.
    pub job: JobConfig,
    /// How long gathering may take.
    pub start_timeout: Duration,
    /// How long it stays after the end to answer repeated questions: only needed where messages can be lost.
    pub linger: Duration,
}

/// The machine.
pub struct Scheduler {
    config: SchedulerConfig,
    members: Vec<Known>,
    phase: Phase,
    epoch: Epoch,
    barrier: Barrier,
    last_timeout: Instant,
}

struct Known {
    member: Member,
    wanted: Option<Rank>,
    last_heard: Instant,
    stats: NodeStats,
}

#[derive(Debug)]
enum Phase {
    /// Until this time.
    Gathering(Instant),
    Running,
    /// Over; stops at this time with this result.
    Over(Instant, Result<(), Error>),
    Stopped,
}

impl Scheduler {
    /// A scheduler that starts to gather its job.
    #[must_use]
    pub fn new(mut config: SchedulerConfig, now: Instant) -> Self {
        config.start_timeout = config.start_timeout.min(TIMEOUT_MAX);
        config.linger = config.linger.min(TIMEOUT_MAX);
        let phase = Phase::Gathering(now + config.start_timeout);
        Self { config, members: Vec::new(), phase, epoch: Epoch(0), barrier: Barrier::default(), last_timeout: now }
    }

    fn join(&mut self, now: Instant, node: NodeId, request: JoinRequest, out: &mut Vec<Action>) {
        if let Some(known) = self.members.iter_mut().find(|known| known.member.node == node) {
            known.last_heard = now;
            if matches!(self.phase, Phase::Gathering(_)) {
                say(node, &Control::Waiting(self.waiting()), out);
            } else {
                self.send_roster(node, out);
            }
            return;
        }
        if let Err(reason) = self.may_join(&request) {
            say(node, &Control::JoinRefused(reason), out);
            return;
        }
        // Numbers by arrival for now; wanted ranks are dealt out when all are there.
        let rank = Rank(self.count(request.role));
        let name = NodeName { role: request.role, rank, endpoint: request.endpoint };
        let member = Member { node, name, standing: Standing::Live };
        self.members.push(Known { member, wanted: request.rank, last_heard: now, stats: NodeStats::default() });
        let Waiting { workers, servers } = self.waiting();
        if workers.0 == workers.1 && servers.0 == servers.1 {
            self.start(out);
        } else {
            say(node, &Control::Waiting(self.waiting()), out);
        }
    }

    fn may_join(&self, request: &JoinRequest) -> Result<(), String> {
        let expected = match request.role {
            Role::Worker => self.config.workers,
            Role::Server => self.config.servers,
            Role::Scheduler | Role::Observer => return Err(format!("a {} does not join", request.role)),
        };
        if !matches!(self.phase, Phase::Gathering(_)) || self.count(request.role) >= expected {
            return Err(format!("the job is complete: all of its {expected} {}s have joined", request.role));
        }
        match request.rank {
            Some(rank) if rank.0 >= expected => {
                Err(format!("{} rank {rank} was asked for, but there are ranks 0 to {}", request.role, expected - 1))
            }
            Some(rank) if self.of_role(request.role).any(|known| known.wanted == Some(rank)) => {
                Err(format!("{} rank {rank} is taken by another node", request.role))
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        for role in [Role::Worker, Role::Server] {
            let mut free: Vec<Rank> = (0..self.count(role)).map(Rank).rev().collect();
            free.retain(|rank| !self.of_role(role).any(|known| known.wanted == Some(*rank)));
            for known in self.members.iter_mut().filter(|known| known.member.name.role == role) {
                if let Some(rank) = known.wanted.or_else(|| free.pop()) {
                    known.member.name.rank = rank;
                }
            }
        }
        self.phase = Phase::Running;
        self.epoch = Epoch(1);
        tracing::info!(workers = self.config.workers, servers = self.config.servers, "all have joined");
        // Servers first: a worker must never reach a server that does not know it yet.
        for node in self.nodes_of_role(Role::Server) {
            self.send_roster(node, out);
        }
    }

    fn send_roster(&self, to: NodeId, out: &mut Vec<Action>) {
        let Some(known) = self.members.iter().find(|known| known.member.node == to) else { return };
        if known.member.name.role == Role::Worker && !self.servers_know_the_workers() {
            return;
        }
        let roster = Roster {
            epoch: self.epoch,
            job: self.config.job.clone(),
            slots: SlotMap::even(self.config.servers),
            members: self.members.iter().map(|known| known.member.clone()).collect(),
        };
        say(to, &Control::Roster(roster), out);
    }

    fn servers_know_the_workers(&self) -> bool {
        self.of_role(Role::Server).all(|server| server.stats.epoch >= Epoch(1))
    }

    fn heartbeat(&mut self, node: NodeId, stats: NodeStats, out: &mut Vec<Action>) {
        let could_start = self.servers_know_the_workers();
        let Some(known) = self.members.iter_mut().find(|known| known.member.node == node) else { return };
        known.stats = stats;
        if !could_start && self.servers_know_the_workers() {
            for node in self.nodes_of_role(Role::Worker) {
                self.send_roster(node, out);
            }
        }
        say(node, &Control::HeartbeatAck, out);
        if stats.epoch < self.epoch {
            self.send_roster(node, out);
        }
    }

    fn leave(&mut self, now: Instant, node: NodeId, out: &mut Vec<Action>) {
        say(node, &Control::LeaveAck, out);
        if matches!(self.phase, Phase::Gathering(_)) {
            self.members.retain(|known| known.member.node != node);
        }
        let Some(known) = self.members.iter_mut().find(|known| known.member.node == node) else { return };
        if known.member.standing == Standing::Live {
            tracing::info!("{} has left", known.member.name);
            known.member.standing = Standing::Left;
            self.barrier.forget(node);
            self.changed(now, out);
        }
    }

    fn lost(&mut self, now: Instant, node: NodeId, reason: &str, out: &mut Vec<Action>) {
        let Some(index) = self.members.iter().position(|known| known.member.node == node) else { return };
        if self.members[index].member.standing != Standing::Live {
            return;
        }
        if matches!(self.phase, Phase::Gathering(_)) {
            // Its place is free again: a node that failed while starting may be started anew.
            tracing::warn!("{} is lost before the start: {reason}", self.members[index].member.name);
            self.members.remove(index);
            return;
        }
        let member = &mut self.members[index].member;
        tracing::warn!("{} is lost: {reason}", member.name);
        member.standing = Standing::Lost(reason.to_owned());
        let name = member.name.clone();
        self.barrier.forget(node);
        if name.role == Role::Server {
            self.changed(now, out);
            self.end(now, Err(Error::ServerLost { name, reason: reason.to_owned() }), out);
            return;
        }
        if self.config.job.worker_loss == WorkerLoss::Fail {
            let rejection = Rejection::WorkerLost { name, reason: reason.to_owned() };
            for (node, control) in self.barrier.break_for_ever(rejection) {
                say(node, &control, out);
            }
        }
        self.changed(now, out);
    }

    /// Tells everybody of a new roster; releases the barrier and ends the job where the change allows it.
    fn changed(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.epoch.0 += 1;
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let live: Vec<NodeId> = self
            .members
            .iter()
            .filter(|known| known.member.standing == Standing::Live)
            .map(|k| k.member.node)
            .collect();
        for node in live {
            self.send_roster(node, out);
        }
        let workers = self.counted_in();
        for (node, control) in self.barrier.release(&workers) {
            say(node, &control, out);
        }
        if self.of_role(Role::Worker).all(|known| known.member.standing != Standing::Live) {
            let lost = self.of_role(Role::Worker).find_map(|known| match &known.member.standing {
                Standing::Lost(reason) => Some((known.member.name.clone(), reason.clone())),
                _ => None,
            });
            let anyone_finished = self.of_role(Role::Worker).any(|known| known.member.standing == Standing::Left);
            let result = match lost {
                Some((name, reason)) if self.config.job.worker_loss == WorkerLoss::Fail || !anyone_finished => {
                    Err(Error::WorkerLost { name, reason })
                }
                _ => Ok(()),
            };
            self.end(now, result, out);
        }
    }

    fn end(&mut self, now: Instant, result: Result<(), Error>, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Over(..) | Phase::Stopped) {
            return;
        }
        let shutdown = Control::Shutdown { failed: result.as_ref().err().map(ToString::to_string) };
        for known in self.members.iter().filter(|known| known.member.standing == Standing::Live) {
            say(known.member.node, &shutdown, out);
        }
        self.phase = Phase::Over(now + self.config.linger, result);
        self.stop_if_over(now, out);
    }

    fn stop_if_over(&mut self, now: Instant, out: &mut Vec<Action>) {
        if matches!(&self.phase, Phase::Over(until, _) if *until <= now)
            && let Phase::Over(_, result) = std::mem::replace(&mut self.phase, Phase::Stopped)
        {
            out.push(Action::Stop(result));
        }
    }

    fn status(&self, now: Instant) -> StatusReport {
        let nodes = self.members.iter().map(|known| NodeStatus {
            node: known.member.node,
            name: known.member.name.clone(),
            standing: known.member.standing.clone(),
            last_heard: now.saturating_duration_since(known.last_heard),
            stats: known.stats,
        });
        StatusReport { waiting: self.waiting(), epoch: self.epoch, nodes: nodes.collect() }
    }

    fn waiting(&self) -> Waiting {
        Waiting {
            workers: (self.count(Role::Worker), self.config.workers),
            servers: (self.count(Role::Server), self.config.servers),
        }
    }

    fn of_role(&self, role: Role) -> impl Iterator<Item = &Known> {
        self.members.iter().filter(move |known| known.member.name.role == role)
    }

    fn nodes_of_role(&self, role: Role) -> Vec<NodeId> {
        self.of_role(role).map(|known| known.member.node).collect()
    }

    fn count(&self, role: Role) -> u16 {
        self.of_role(role).count() as u16
    }

    /// Workers that the barrier waits for.
    fn counted_in(&self) -> Vec<(NodeId, Rank)> {
        self.of_role(Role::Worker)
            .filter(|known| known.member.standing == Standing::Live)
            .map(|known| (known.member.node, known.member.name.rank))
            .collect()
    }

    /// Who has not come, for the error when gathering fails.
    fn missing(&self) -> String {
        let missing = |role, expected| -> Vec<String> {
            let mut free: Vec<Rank> = (0..expected).map(Rank).collect();
            free.retain(|rank| !self.of_role(role).any(|known| known.wanted == Some(*rank)));
            let unranked = self.of_role(role).filter(|known| known.wanted.is_none()).count();
            free.into_iter().skip(unranked).map(|rank| format!("{role} {rank}")).collect()
        };
        let mut all = missing(Role::Server, self.config.servers);
        all.extend(missing(Role::Worker, self.config.workers));
        all.join(", ")
    }
}

impl Machine for Scheduler {
    fn handle(&mut self, now: Instant, from: NodeId, message: Message, out: &mut Vec<Action>) {
        let Ok(control) = Control::of_message(&message) else {
            tracing::debug!(%from, "dropped a message that is not for a scheduler");
            return;
        };
        let member = self.members.iter_mut().find(|known| known.member.node == from);
        if let Some(known) = member {
            known.last_heard = now;
            if let Phase::Over(_, result) = &self.phase
                && known.member.standing == Standing::Live
                && !matches!(control, Control::Leave)
            {
                say(from, &Control::Shutdown { failed: result.as_ref().err().map(ToString::to_string) }, out);
                return;
            }
        }
        match control {
            Control::Join(request) => self.join(now, from, request, out),
            Control::Heartbeat(stats) => self.heartbeat(from, stats, out),
            Control::BarrierEnter { number, attempt, timeout } => {
                let workers = self.counted_in();
                // Before all have joined, nobody knows for whom a barrier would have to wait.
                let has_started = self.epoch >= Epoch(1);
                if has_started && workers.iter().any(|(node, _)| *node == from) {
                    for (node, control) in self.barrier.enter(now, from, Entry { number, attempt, timeout }, &workers) {
                        say(node, &control, out);
                    }
                } else {
                    let rejection = Rejection::NotAMember;
                    say(from, &Control::BarrierFailed { number, attempt, rejection }, out);
                }
            }
            Control::PeerLost { node, reason } => {
                let reporter = self.members.iter().find(|known| known.member.node == from);
                if let Some(reporter) = reporter.filter(|known| known.member.standing == Standing::Live) {
                    let reason = format!("{} reports: {reason}", reporter.member.name);
                    self.lost(now, node, &reason, out);
                }
            }
            Control::Leave => self.leave(now, from, out),
            Control::StatusRequest => say(from, &Control::Status(self.status(now)), out),
            // What only a scheduler says.
            Control::Waiting(_)
            | Control::JoinRefused(_)
            | Control::Roster(_)
            | Control::HeartbeatAck
            | Control::BarrierRelease { .. }
            | Control::BarrierFailed { .. }
            | Control::LeaveAck
            | Control::Shutdown { .. }
            | Control::Status(_) => tracing::debug!(%from, "dropped a message that is not for a scheduler"),
        }
    }

    fn handle_link(&mut self, now: Instant, event: LinkEvent, out: &mut Vec<Action>) {
        if let LinkEvent::Down { node, reason } = event {
            self.lost(now, node, &reason.to_string(), out);
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Action>) {
        let dead_after = self.config.job.dead_after;
        // A scheduler that was itself stopped for a while must not blame the silence on the others.
        let stalled = now.saturating_duration_since(self.last_timeout) > dead_after / 2;
        self.last_timeout = now;
        if stalled {
            self.members.iter_mut().for_each(|known| known.last_heard = now);
        }
        let silent = |known: &&Known| known.member.standing == Standing::Live && known.last_heard + dead_after <= now;
        let dead: Vec<NodeId> = self.members.iter().filter(silent).map(|known| known.member.node).collect();
        for node in dead {
            self.lost(now, node, &format!("no heartbeat for {dead_after:?}"), out);
        }
        let workers = self.counted_in();
        for (node, control) in self.barrier.handle_timeout(now, &workers) {
            say(node, &control, out);
        }
        if matches!(self.phase, Phase::Gathering(until) if until <= now) {
            let what = format!("nodes to join: {}; not there: {}", self.waiting(), self.missing());
            self.end(now, Err(Error::Timeout { what, waited: self.config.start_timeout }), out);
        }
        self.stop_if_over(now, out);
    }

    fn deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Gathering(until) | Phase::Over(until, _) => Some(*until),
            Phase::Running => None,
            Phase::Stopped => return None,
        };
        // More often than its own stop must last to be noticed.
        let JobConfig { heartbeat_every, dead_after, .. } = self.config.job;
        let regular = self.last_timeout + heartbeat_every.min(dead_after / 4);
        [phase, self.barrier.deadline(), Some(regular)].into_iter().flatten().min()
    }
}

fn say(to: NodeId, control: &Control, out: &mut Vec<Action>) {
    match control.to_message() {
        Ok(message) => out.push(Action::Send { to, message }),
        Err(error) => tracing::error!(%error, "a control message is too long"),
    }
}
