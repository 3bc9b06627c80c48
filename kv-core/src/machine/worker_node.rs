//! A worker as a member of a job: joins, links to every server, barriers, leaves.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::calls::{CallId, Op};
use super::member::{Member, News};
use super::worker::{Worker, WorkerConfig};
use super::{Action, LinkEvent, Machine, MemberConfig, Outcome, Resend};
use crate::cluster::{NodeId, NodeName, Role, Roster, Standing};
use crate::consistency::Consistency;
use crate::error::Error;
use crate::limits::{ANSWER_GRACE, TIMEOUT_MAX};
use crate::wire::{Control, Kind, Message, NodeStats};

/// How long a broken link to a server waits for the scheduler's verdict. When a server or the scheduler dies, the others
/// end too, and their links break in any order: only the scheduler, or its silence, says which death was the first.
const VERDICT: Duration = Duration::from_millis(500);

/// How long until an unanswered barrier request is repeated.
const BARRIER_REPEAT: Duration = Duration::from_millis(500);

/// Membership and the worker's decisions together.
pub struct WorkerNode {
    node: NodeId,
    member: Member,
    consistency: Consistency,
    timeout: Duration,
    resend: Resend,
    phase: Phase,
    /// Calls that change something and are not acknowledged yet: a barrier waits for them.
    unsettled: BTreeSet<CallId>,
    barriers: VecDeque<Barrier>,
    /// Number of the last barrier that was released.
    released: u64,
    leaving: Leaving,
    stats: NodeStats,
    /// Links to servers that broke and are not judged yet.
    broken: Vec<Broken>,
}

/// A broken link to a server that is live by the roster.
struct Broken {
    node: NodeId,
    reason: String,
    /// When the calls that wait for it end, whatever the scheduler says.
    until: Instant,
}

/// How far the last call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Not submitted.
    No,
    /// Waits for the barriers before it.
    Held(CallId),
    /// The worker tells the servers, once everything before it has ended.
    Asked(CallId),
    /// The scheduler is told.
    Goodbye(CallId),
    /// Complete.
    Done,
}

enum Phase {
    /// No roster yet.
    Joining,
    /// These servers are not linked yet.
    Linking(Box<Worker>, Vec<NodeName>),
    Running(Box<Worker>),
    /// Every call ends with this.
    Over(Error),
}

struct Barrier {
    call: CallId,
    since: Instant,
    /// When it was asked for last; `None` while the caller's own earlier calls are not acknowledged.
    asked: Option<Instant>,
}

impl WorkerNode {
    /// A worker that starts to join.
    #[must_use]
    pub fn new(
        member: MemberConfig,
        consistency: Consistency,
        timeout: Duration,
        resend: Resend,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> Self {
        Self {
            node: member.node,
            member: Member::new(member, now, out),
            consistency,
            timeout: timeout.min(TIMEOUT_MAX),
            resend,
            phase: Phase::Joining,
            unsettled: BTreeSet::new(),
            barriers: VecDeque::new(),
            released: 0,
            leaving: Leaving::No,
            stats: NodeStats::default(),
            broken: Vec::new(),
        }
    }

    /// Starts a call; see [`Worker::submit`]. Call it after [`Action::Joined`].
    pub fn submit(&mut self, now: Instant, call: CallId, op: Op, priority: i32, out: &mut Vec<Action>) {
        if self.refuse_after_leave(call, out) {
            return;
        }
        match &op {
            Op::Leave if self.barriers.is_empty() => self.leaving = Leaving::Asked(call),
            // The scheduler forgets a barrier of a worker that has left.
            Op::Leave if matches!(self.phase, Phase::Running(_)) => {
                self.leaving = Leaving::Held(call);
                return;
            }
            Op::Leave | Op::Init(_) | Op::SetUpdater(_) => {}
            Op::Pull(_) => self.stats.pulls += 1,
            Op::Push(_) | Op::PushPull(_) => self.stats.pushes += 1,
        }
        if op.has_effects() {
            self.unsettled.insert(call);
        }
        match &mut self.phase {
            Phase::Running(worker) => worker.submit(now, call, op, priority, out),
            Phase::Over(error) => out.push(Action::Complete { call, result: Err(error.clone()) }),
            Phase::Joining | Phase::Linking(..) => {
                out.push(Action::Complete { call, result: Err(too_early()) });
            }
        }
        self.after(now, out);
    }

    /// Starts a barrier of all workers. It ends with one [`Action::Complete`].
    pub fn submit_barrier(&mut self, now: Instant, call: CallId, out: &mut Vec<Action>) {
        if self.refuse_after_leave(call, out) {
            return;
        }
        match &self.phase {
            Phase::Over(error) => out.push(Action::Complete { call, result: Err(error.clone()) }),
            Phase::Joining | Phase::Linking(..) => out.push(Action::Complete { call, result: Err(too_early()) }),
            Phase::Running(_) => {
                self.barriers.push_back(Barrier { call, since: now, asked: None });
                self.enter_barrier(now, out);
            }
        }
    }

    fn refuse_after_leave(&self, call: CallId, out: &mut Vec<Action>) -> bool {
        let refused = self.leaving != Leaving::No;
        if refused {
            let over = if let Phase::Over(error) = &self.phase { error.clone() } else { Error::Closed };
            out.push(Action::Complete { call, result: Err(over) });
        }
        refused
    }

    /// What the caller has changed before comes first, then the scheduler.
    fn enter_barrier(&mut self, now: Instant, out: &mut Vec<Action>) {
        let number = self.released + 1;
        let Some(barrier) = self.barriers.front_mut() else { return };
        let flushed = self.unsettled.first().is_none_or(|oldest| *oldest > barrier.call);
        if flushed && barrier.asked.is_none_or(|asked| asked + BARRIER_REPEAT <= now) {
            barrier.asked = Some(now);
            let timeout = self.timeout.saturating_sub(now.saturating_duration_since(barrier.since));
            let attempt = barrier.call.0;
            self.member.say(&Control::BarrierEnter { number, attempt, timeout }, out);
        }
    }

    fn end_barrier(&mut self, now: Instant, result: Result<Outcome, Error>, out: &mut Vec<Action>) {
        if let Some(barrier) = self.barriers.pop_front() {
            out.push(Action::Complete { call: barrier.call, result });
        }
        self.enter_barrier(now, out);
        if self.barriers.is_empty()
            && let Leaving::Held(call) = self.leaving
            && let Phase::Running(worker) = &mut self.phase
        {
            self.leaving = Leaving::Asked(call);
            worker.submit(now, call, Op::Leave, i32::MIN, out);
        }
    }

    /// Looks at the completions a step has brought.
    fn after(&mut self, now: Instant, out: &mut Vec<Action>) {
        let mut told_servers = None;
        let mut settled = false;
        out.retain(|action| {
            let Action::Complete { call, .. } = action else { return true };
            settled |= self.unsettled.remove(call);
            if self.leaving != Leaving::Asked(*call) {
                return true;
            }
            // Leaving is complete only when the scheduler has heard it too; unless there is none any more.
            let is_over = matches!(self.phase, Phase::Over(_));
            told_servers = (!is_over).then_some(*call);
            self.leaving = Leaving::Done;
            is_over
        });
        if let Some(call) = told_servers {
            // A server that is gone does not hold up the goodbye to the scheduler.
            self.leaving = Leaving::Goodbye(call);
            self.member.leave(now, out);
        }
        if settled {
            self.enter_barrier(now, out);
        }
    }

    /// Completes the last call where nobody else will: the worker does not know it (any more).
    fn complete_leave(&mut self, result: Result<Outcome, Error>, out: &mut Vec<Action>) {
        if let Leaving::Held(call) | Leaving::Goodbye(call) = self.leaving {
            self.leaving = Leaving::Done;
            out.push(Action::Complete { call, result });
        }
    }

    fn take(&mut self, now: Instant, news: Option<News>, out: &mut Vec<Action>) {
        match news {
            None => {}
            Some(News::Roster) => self.take_roster(now, out),
            Some(News::Control(Control::BarrierRelease { number })) if number == self.released + 1 => {
                self.released = number;
                // Without one that was asked for, it is the answer to one that gave up waiting.
                if self.barriers.front().is_some_and(|barrier| barrier.asked.is_some()) {
                    self.end_barrier(now, Ok(Outcome::Done), out);
                }
            }
            Some(News::Control(Control::BarrierFailed { number, attempt, rejection })) => {
                // The failure of an earlier try may be late, or told twice.
                let front = self.barriers.front();
                let asked = front.is_some_and(|barrier| barrier.asked.is_some() && barrier.call.0 == attempt);
                if asked && number == self.released + 1 {
                    let error = rejection.into_error(|key| crate::Key::Int(key.0));
                    self.end_barrier(now, Err(error), out);
                }
            }
            Some(News::Control(_)) => {}
            Some(News::Left) => {
                self.complete_leave(Ok(Outcome::Done), out);
                self.end(&Error::Closed, out);
                out.push(Action::Stop(Ok(())));
            }
            Some(News::Over(result)) => {
                let error = match result {
                    // The scheduler ends a job well only after every worker has left.
                    Ok(()) => Error::JobFailed { reason: "the scheduler ended it".to_owned() },
                    Err(error) => self.lost_server().unwrap_or(error),
                };
                self.over(error, out);
            }
        }
    }

    /// The error that a lost server in the roster means: more telling than the scheduler's text.
    fn lost_server(&self) -> Option<Error> {
        self.member.roster()?.of_role(Role::Server).find_map(|member| match &member.standing {
            Standing::Lost(reason) => Some(Error::ServerLost { name: member.name.clone(), reason: reason.clone() }),
            _ => None,
        })
    }

    fn over(&mut self, error: Error, out: &mut Vec<Action>) {
        self.end(&error, out);
        self.complete_leave(Err(error.clone()), out);
        out.push(Action::Stop(Err(error)));
    }

    /// Every open call ends with this error, and every later one.
    fn end(&mut self, error: &Error, out: &mut Vec<Action>) {
        let old = std::mem::replace(&mut self.phase, Phase::Over(error.clone()));
        match old {
            Phase::Running(mut worker) | Phase::Linking(mut worker, _) => worker.fail_all(error, out),
            Phase::Joining | Phase::Over(_) => {}
        }
        let barriers = self.barriers.drain(..);
        out.extend(barriers.map(|barrier| Action::Complete { call: barrier.call, result: Err(error.clone()) }));
        self.unsettled.clear();
    }

    fn take_roster(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(roster) = self.member.roster().cloned() else { return };
        if matches!(self.phase, Phase::Joining) {
            let worker = Worker::new(self.worker_config(&roster), now);
            let mut servers: Vec<NodeName> = roster.of_role(Role::Server).map(|member| member.name.clone()).collect();
            servers.sort_by_key(|name| name.rank);
            out.extend(servers.iter().map(|name| Action::Connect { endpoint: name.endpoint.clone() }));
            self.phase = Phase::Linking(Box::new(worker), servers);
            return;
        }
        for member in roster.of_role(Role::Server) {
            if let Standing::Lost(reason) = &member.standing {
                self.server_lost(now, member.node, reason, out);
            }
        }
    }

    fn worker_config(&self, roster: &Roster) -> WorkerConfig {
        let mut servers: Vec<_> = roster.of_role(Role::Server).map(|m| (m.node, m.name.clone())).collect();
        servers.sort_by_key(|(_, name)| name.rank);
        WorkerConfig {
            rank: roster.find(self.node).map(|me| me.name.rank).unwrap_or_default(),
            consistency: self.consistency,
            chunk_bytes: u64::from(roster.job.chunk_bytes.max(1)),
            slots: roster.slots.clone(),
            servers,
            timeout: self.timeout,
            resend: self.resend,
        }
    }

    fn server_lost(&mut self, now: Instant, node: NodeId, reason: &str, out: &mut Vec<Action>) {
        if let Phase::Running(worker) | Phase::Linking(worker, _) = &mut self.phase {
            worker.server_lost(now, node, reason, out);
        }
    }

    fn linked(&mut self, event: &LinkEvent, out: &mut Vec<Action>) {
        let Phase::Linking(_, missing) = &mut self.phase else { return };
        match event {
            LinkEvent::Up { endpoint, node } => {
                let roster = self.member.roster();
                let expected = roster.and_then(|r| r.members.iter().find(|m| m.name.endpoint == *endpoint));
                if let Some(member) = expected
                    && member.name.role == Role::Server
                {
                    if member.node != *node {
                        let reason = "another incarnation answers at its address".to_owned();
                        let error = Error::ServerLost { name: member.name.clone(), reason };
                        return self.over(error, out);
                    }
                    missing.retain(|name| name.endpoint != *endpoint);
                }
            }
            LinkEvent::Unreachable { endpoint, reason } => {
                if let Some(name) = missing.iter().find(|name| name.endpoint == *endpoint) {
                    let error = Error::ServerLost { name: name.clone(), reason: reason.to_string() };
                    return self.over(error, out);
                }
            }
            LinkEvent::Down { .. } => {}
        }
        if missing.is_empty()
            && let Phase::Linking(worker, _) = std::mem::replace(&mut self.phase, Phase::Joining)
        {
            self.phase = Phase::Running(worker);
            if let Some(place) = self.member.place() {
                out.push(Action::Joined(place));
            }
        }
    }
}

fn too_early() -> Error {
    let hint = "wait until the store is open".to_owned();
    Error::Unsupported { what: "a call before the job has started".to_owned(), hint }
}

impl Machine for WorkerNode {
    fn handle(&mut self, now: Instant, from: NodeId, message: Message, out: &mut Vec<Action>) {
        if message.kind() != Kind::Control {
            if let Phase::Running(worker) = &mut self.phase {
                worker.handle(now, from, &message, out);
            }
        } else if self.member.scheduler() == Some(from) {
            match Control::of_message(&message) {
                Ok(control) => {
                    let news = self.member.handle(now, control, self.stats, out);
                    self.take(now, news, out);
                }
                Err(error) => tracing::warn!(%error, "dropped a control message"),
            }
        }
        self.after(now, out);
    }

    fn handle_link(&mut self, now: Instant, event: LinkEvent, out: &mut Vec<Action>) {
        let news = self.member.handle_link(now, &event, out);
        self.take(now, news, out);
        self.linked(&event, out);
        if let LinkEvent::Down { node, reason } = &event {
            let member = self.member.roster().and_then(|roster| roster.find(*node));
            if member.is_some_and(|member| member.standing == Standing::Live) {
                self.member.report_lost(*node, reason, out);
                self.broken.push(Broken { node: *node, reason: reason.to_string(), until: now + VERDICT });
            }
        }
        self.after(now, out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Action>) {
        let news = self.member.handle_timeout(now, self.stats, out);
        self.take(now, news, out);
        for Broken { node, reason, .. } in self.broken.extract_if(.., |broken| broken.until <= now).collect::<Vec<_>>()
        {
            self.server_lost(now, node, &reason, out);
        }
        if let Phase::Running(worker) = &mut self.phase {
            worker.handle_timeout(now, out);
        }
        let limit = self.timeout + ANSWER_GRACE;
        if let Some(barrier) = self.barriers.front() {
            let waited = now.saturating_duration_since(barrier.since);
            if waited >= limit {
                let what = match barrier.asked {
                    Some(_) => "the scheduler to answer a barrier",
                    None => "this worker's own calls to be acknowledged before a barrier",
                };
                self.end_barrier(now, Err(Error::Timeout { what: what.to_owned(), waited }), out);
            }
        }
        self.enter_barrier(now, out);
        self.after(now, out);
    }

    fn deadline(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Over(_)) {
            return None;
        }
        let worker = match &self.phase {
            Phase::Running(worker) => worker.deadline(),
            _ => None,
        };
        let barrier = self.barriers.front().map(|barrier| {
            let limit = barrier.since + self.timeout + ANSWER_GRACE;
            barrier.asked.map_or(limit, |asked| limit.min(asked + BARRIER_REPEAT))
        });
        let verdict = self.broken.iter().map(|broken| broken.until).min();
        [self.member.deadline(), worker, barrier, verdict].into_iter().flatten().min()
    }
}
