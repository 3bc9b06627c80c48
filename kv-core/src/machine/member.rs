//! A node's side of membership: reach the scheduler, join, send heartbeats, keep the roster, notice when the
//! scheduler is gone. Part of every server and worker.

use std::time::{Duration, Instant};

use super::{Action, Joined, LinkEvent};
use crate::cluster::{NodeId, Rank, Role, Roster, Standing};
use crate::error::Error;
use crate::limits::{MEMBERS_MAX, TIMEOUT_MAX};
use crate::van::{Endpoint, VanError};
use crate::wire::{Control, JoinRequest, NodeStats, Waiting};

/// How often something is said again until it is answered.
const REPEAT: Duration = Duration::from_millis(500);

/// Whether data requests are sent again when no answer comes: only where messages can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// The van delivers or reports the link lost.
    Never,
    /// After this long without an answer, then twice as long, up to eight times.
    After(Duration),
}

/// How a node joins.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// This node's identity, the van's.
    pub node: NodeId,
    /// Worker or server.
    pub role: Role,
    /// The rank it would like.
    pub rank: Option<Rank>,
    /// Where others reach it.
    pub endpoint: Endpoint,
    /// Where the scheduler is.
    pub scheduler: Endpoint,
    /// How long joining may take, until everybody is there.
    pub start_timeout: Duration,
}

/// The state of membership.
pub(super) struct Member {
    config: MemberConfig,
    started: Instant,
    scheduler: Option<NodeId>,
    waiting: Option<Waiting>,
    unreachable: Option<VanError>,
    roster: Option<Roster>,
    next_repeat: Instant,
    last_heard: Instant,
    last_timeout: Instant,
    leaving: bool,
    done: bool,
}

/// What concerns the node that owns the membership.
#[derive(Debug)]
pub(super) enum News {
    /// A new roster; the old one is replaced already.
    Roster,
    /// Something said by the scheduler that is not about membership.
    Control(Control),
    /// The scheduler has counted this node out.
    Left,
    /// The job is over, or this node cannot take part in it any more.
    Over(Result<(), Error>),
}

impl Member {
    pub(super) fn new(mut config: MemberConfig, now: Instant, out: &mut Vec<Action>) -> Self {
        config.start_timeout = config.start_timeout.min(TIMEOUT_MAX);
        out.push(Action::Connect { endpoint: config.scheduler.clone() });
        Self {
            config,
            started: now,
            scheduler: None,
            waiting: None,
            unreachable: None,
            roster: None,
            next_repeat: now + REPEAT,
            last_heard: now,
            last_timeout: now,
            leaving: false,
            done: false,
        }
    }

    pub(super) fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref()
    }

    /// This node's place in the job, once there is a roster.
    pub(super) fn place(&self) -> Option<Joined> {
        let roster = self.roster.as_ref()?;
        Some(Joined {
            rank: roster.find(self.config.node)?.name.rank,
            workers: roster.of_role(Role::Worker).count() as u16,
            servers: roster.of_role(Role::Server).count() as u16,
        })
    }

    pub(super) fn scheduler(&self) -> Option<NodeId> {
        self.scheduler
    }

    /// Says goodbye until the scheduler has heard it.
    pub(super) fn leave(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.leaving = true;
        self.say(&Control::Leave, out);
        self.next_repeat = now + REPEAT;
    }

    /// Reports a member whose link broke.
    pub(super) fn report_lost(&mut self, node: NodeId, reason: &VanError, out: &mut Vec<Action>) {
        self.say(&Control::PeerLost { node, reason: reason.to_string() }, out);
    }

    pub(super) fn say(&self, control: &Control, out: &mut Vec<Action>) {
        // A control message of a member is always short; only a roster could be too long.
        if let (Some(to), Ok(message)) = (self.scheduler, control.to_message()) {
            out.push(Action::Send { to, message });
        }
    }

    pub(super) fn handle(
        &mut self,
        now: Instant,
        control: Control,
        stats: NodeStats,
        out: &mut Vec<Action>,
    ) -> Option<News> {
        if self.done {
            return None;
        }
        self.last_heard = now;
        match control {
            Control::Waiting(waiting) => {
                self.waiting = Some(waiting);
                None
            }
            Control::JoinRefused(reason) => self.over(Err(Error::Refused { by: "the scheduler".to_owned(), reason })),
            Control::Roster(roster) => self.take_roster(now, roster, stats, out),
            Control::HeartbeatAck => None,
            Control::LeaveAck if self.leaving => self.left(),
            // A job that ends well while this node says goodbye has heard it.
            Control::Shutdown { failed: None } if self.leaving => self.left(),
            Control::Shutdown { failed: None } => self.over(Ok(())),
            Control::Shutdown { failed: Some(reason) } => self.over(Err(Error::JobFailed { reason })),
            other => Some(News::Control(other)),
        }
    }

    pub(super) fn handle_link(&mut self, now: Instant, event: &LinkEvent, out: &mut Vec<Action>) -> Option<News> {
        match event {
            LinkEvent::Up { endpoint, node } if *endpoint == self.config.scheduler => {
                self.scheduler = Some(*node);
                self.last_heard = now;
                self.join(now, out);
                None
            }
            LinkEvent::Unreachable { endpoint, reason } if *endpoint == self.config.scheduler => {
                if let VanError::Unreachable { .. } = reason {
                    self.unreachable = Some(reason.clone());
                    self.next_repeat = now + REPEAT;
                    None
                } else {
                    self.over(Err(reason.clone().into()))
                }
            }
            LinkEvent::Down { node, reason } if Some(*node) == self.scheduler && !self.done => {
                if self.leaving {
                    return self.left();
                }
                self.over(Err(self.scheduler_lost(reason.to_string())))
            }
            _ => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, stats: NodeStats, out: &mut Vec<Action>) -> Option<News> {
        if self.done {
            return None;
        }
        // A node that was itself stopped for a while must not blame the silence on the scheduler.
        let stalled = now.saturating_duration_since(self.last_timeout) > self.dead_after() / 2;
        self.last_timeout = now;
        if stalled {
            self.last_heard = now;
        }
        if self.roster.is_none() && now >= self.started + self.config.start_timeout {
            return self.over(Err(self.start_failed()));
        }
        if self.roster.is_some() && now >= self.last_heard + self.dead_after() {
            if self.leaving {
                return self.left();
            }
            let reason = format!("nothing heard for {:?}", self.dead_after());
            return self.over(Err(self.scheduler_lost(reason)));
        }
        if now >= self.next_repeat {
            self.next_repeat = now + REPEAT;
            if self.scheduler.is_none() {
                out.push(Action::Connect { endpoint: self.config.scheduler.clone() });
                // Not again before this attempt has ended one way or the other.
                self.next_repeat = self.started + self.config.start_timeout;
            } else if self.leaving {
                self.say(&Control::Leave, out);
            } else if self.roster.is_none() {
                self.join(now, out);
            } else {
                self.heartbeat(now, stats, out);
            }
        }
        None
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.done {
            return None;
        }
        let limit = if self.roster.is_some() {
            // More often than a stop must last to be noticed.
            (self.last_heard + self.dead_after()).min(self.last_timeout + self.dead_after() / 4)
        } else {
            self.started + self.config.start_timeout
        };
        Some(self.next_repeat.min(limit))
    }

    fn join(&mut self, now: Instant, out: &mut Vec<Action>) {
        let MemberConfig { role, rank, endpoint, .. } = self.config.clone();
        self.say(&Control::Join(JoinRequest { role, rank, endpoint }), out);
        self.next_repeat = now + REPEAT;
    }

    fn heartbeat(&mut self, now: Instant, stats: NodeStats, out: &mut Vec<Action>) {
        let Some(roster) = &self.roster else { return };
        self.next_repeat = now + roster.job.heartbeat_every;
        self.say(&Control::Heartbeat(NodeStats { epoch: roster.epoch, ..stats }), out);
    }

    fn take_roster(&mut self, now: Instant, roster: Roster, stats: NodeStats, out: &mut Vec<Action>) -> Option<News> {
        let servers = roster.servers_by_rank().len();
        if servers == 0 || roster.members.len() > MEMBERS_MAX || !roster.slots.is_valid(servers) {
            return self
                .over(Err(Error::Protocol("the scheduler sent a roster without a server for each slot".into())));
        }
        if let Err(reason) = roster.job.check() {
            return self.over(Err(Error::Protocol(format!("the scheduler sent settings that do not work: {reason}"))));
        }
        let standing = roster.find(self.config.node).map(|me| &me.standing);
        if self.leaving && standing == Some(&Standing::Left) {
            // As good as the acknowledgement, which may have been lost.
            return self.left();
        }
        if standing != Some(&Standing::Live) {
            let reason = "it has counted this node out".to_owned();
            return self.over(Err(Error::Refused { by: "the scheduler".to_owned(), reason }));
        }
        let newer = self.roster.as_ref().is_none_or(|known| roster.epoch > known.epoch);
        if newer {
            self.roster = Some(roster);
        }
        // At once: the scheduler repeats a roster until it sees its epoch.
        self.heartbeat(now, stats, out);
        newer.then_some(News::Roster)
    }

    /// The scheduler has counted this node out, or is not there to do so: either way nobody waits for it.
    fn left(&mut self) -> Option<News> {
        self.done = true;
        Some(News::Left)
    }

    fn over(&mut self, result: Result<(), Error>) -> Option<News> {
        self.done = true;
        Some(News::Over(result))
    }

    fn dead_after(&self) -> Duration {
        self.roster.as_ref().map_or(self.config.start_timeout, |roster| roster.job.dead_after)
    }

    fn scheduler_lost(&self, reason: String) -> Error {
        Error::SchedulerLost { endpoint: self.config.scheduler.clone(), reason }
    }

    fn start_failed(&self) -> Error {
        let endpoint = &self.config.scheduler;
        let what = match (&self.scheduler, &self.waiting, &self.unreachable) {
            (Some(_), Some(waiting), _) => format!("the job at {endpoint} to gather: {waiting}"),
            (Some(_), None, _) => format!("the scheduler at {endpoint} to answer"),
            (None, _, Some(reason)) => format!("the scheduler: {reason}"),
            (None, _, None) => format!("the scheduler at {endpoint} to take the connection"),
        };
        Error::Timeout { what, waited: self.config.start_timeout }
    }
}
