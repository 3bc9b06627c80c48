//! The loop: takes what happens next, gives it to a machine, does what the machine wants.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kv_core::VanError;
use kv_core::cluster::{Role, Roster};
use kv_core::machine::{Action, LinkEvent};
use kv_core::wire::{Control, Kind, Message};

use super::client::{Client, Wish};
use super::garbage;
use super::history::History;
use super::network::{Event, Happening, Network};
use super::node::{Body, Node, State, number_of};
use super::plan::{Fault, Plan, Profile};
use super::stats::Stats;
use super::trace::{Keep, Trace};

/// More events than any job has: a machine that asks for its timeout again and again would never end.
pub const EVENTS_MAX: u64 = 3_000_000;

/// A finished run, for the oracles.
pub struct Run {
    /// What the applications saw.
    pub history: History,
    /// Every roster the scheduler sent, in order.
    pub rosters: Vec<Roster>,
    /// For each node: how it ended.
    pub ends: Vec<End>,
    /// When it ended.
    pub ended_at: Duration,
    /// The counts.
    pub stats: Stats,
    /// The trace.
    pub trace: Trace,
}

/// How a node ended.
#[derive(Clone, Debug)]
pub struct End {
    /// Its role.
    pub role: Role,
    /// Its place, if it ever had one.
    pub rank: Option<usize>,
    /// Whether it crashed.
    pub crashed: bool,
    /// How its machine stopped, if it did; an error as its text.
    pub stopped: Option<Result<(), String>>,
}

/// A cluster in virtual time.
pub struct World<'a> {
    plan: &'a Plan,
    base: Instant,
    now: Duration,
    network: Network,
    nodes: Vec<Node>,
    clients: BTreeMap<usize, Client>,
    history: History,
    rosters: Vec<Roster>,
    /// For each pair of nodes: the highest sequence sent.
    sequences: HashMap<(usize, usize), u64>,
    stats: Stats,
    trace: Trace,
}

/// The origin of virtual time. Only differences matter, so one will do for all runs.
fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}

impl<'a> World<'a> {
    /// A cluster about to start.
    #[must_use]
    pub fn new(plan: &'a Plan, keep: Keep) -> Self {
        let mut network = Network::new(plan.seed, plan.nodes(), plan.weather.clone());
        for (node, &at) in plan.starts.iter().enumerate() {
            network.schedule(at, node, Happening::Start);
        }
        for (at, fault) in &plan.faults {
            network.schedule(*at, 0, Happening::Fault(fault.clone()));
        }
        let mut stats = Stats::default();
        stats.runs.insert(plan.profile, 1);
        Self {
            plan,
            base: base(),
            now: Duration::ZERO,
            network,
            nodes: (0..plan.nodes()).map(|number| Node::new(plan, number)).collect(),
            clients: BTreeMap::new(),
            history: History::default(),
            rosters: Vec::new(),
            sequences: HashMap::new(),
            stats,
            trace: Trace::new(keep),
        }
    }

    /// Runs it to its end.
    #[must_use]
    pub fn run(mut self) -> Run {
        let horizon = self.plan.faults_end() + self.plan.patience() * 2 + Duration::from_secs(200);
        while !self.nodes.iter().all(Node::is_over) {
            let timer = self.next_timer();
            let next = self.network.next_at();
            let Some(at) = [next, timer.map(|(at, _)| at)].into_iter().flatten().min() else { break };
            if at > horizon || self.stats.events > EVENTS_MAX {
                break;
            }
            self.now = self.now.max(at);
            self.stats.events += 1;
            match timer {
                Some((at, node)) if next.is_none_or(|next| at < next) => self.timeout(node),
                _ => {
                    if let Some(event) = self.network.pop() {
                        self.happen(event);
                    }
                }
            }
        }
        let ends = self.nodes.iter().map(|node| End {
            role: node.role,
            rank: node.joined.map(|joined| usize::from(joined.rank.0)),
            crashed: matches!(node.state, State::Crashed),
            stopped: match &node.state {
                State::Stopped(result) => Some(result.clone().map_err(|error| error.to_string())),
                _ => None,
            },
        });
        Run {
            ends: ends.collect(),
            history: self.history,
            rosters: self.rosters,
            ended_at: self.now,
            stats: self.stats,
            trace: self.trace,
        }
    }

    fn next_timer(&self) -> Option<(Duration, usize)> {
        let timers = self.nodes.iter().enumerate().filter(|(_, node)| node.is_up() && node.stalled.is_none());
        timers.filter_map(|(number, node)| Some((node.deadline?, number))).min()
    }

    fn timeout(&mut self, node: usize) {
        self.trace.note(self.now, node, "timeout", String::new);
        self.with_body(node, |body, now, out| body.handle_timeout(now, out));
    }

    /// Lets a node's machine do something, and does what it wants.
    fn with_body(&mut self, node: usize, step: impl FnOnce(&mut Body, Instant, &mut Vec<Action>)) {
        let now = self.base + self.now;
        let mut out = Vec::new();
        if let Some(body) = &mut self.nodes[node].body {
            step(body, now, &mut out);
        }
        self.act(node, out);
    }

    fn happen(&mut self, event: Event) {
        let Event { node, what, .. } = event;
        if let Happening::Fault(fault) = what {
            return self.fault(fault);
        }
        if let Happening::Resume = what {
            return self.resume(node);
        }
        if let (Some(held), false) = (&mut self.nodes[node].stalled, matches!(what, Happening::Start)) {
            held.push(what);
            return;
        }
        self.deliver(node, what);
    }

    fn deliver(&mut self, node: usize, what: Happening) {
        if let Happening::Start = what {
            if self.nodes[node].is_over() {
                return;
            }
            self.trace.note(self.now, node, "start", String::new);
            let mut out = Vec::new();
            let now = self.base + self.now;
            self.nodes[node].start(self.plan, node, now, &mut out);
            return self.act(node, out);
        }
        if !self.nodes[node].is_up() {
            return;
        }
        match what {
            Happening::Message { sender, from, message } => {
                if sender.is_some_and(|sender| self.network.died_with(sender, node)) {
                    self.stats.died += 1;
                    return;
                }
                self.stats.delivered += 1;
                self.trace.message(self.now, from.0, node, &message);
                self.with_body(node, |body, now, out| body.handle(now, from, message, out));
            }
            Happening::Link(event) => {
                self.trace.note(self.now, node, "link", || format!(" {event:?}"));
                self.with_body(node, |body, now, out| body.handle_link(now, event, out));
            }
            Happening::Dial(endpoint) => self.dialled(node, endpoint),
            Happening::Step => self.step(node),
            Happening::Start | Happening::Resume | Happening::Fault(_) => {}
        }
    }

    fn dialled(&mut self, node: usize, endpoint: kv_core::Endpoint) {
        let target = number_of(&endpoint).filter(|&target| self.nodes.get(target).is_some_and(Node::is_up));
        let event = match target {
            Some(target) => {
                self.network.link(node, target);
                LinkEvent::Up { endpoint, node: self.nodes[target].id }
            }
            None => {
                let reason = VanError::Unreachable { endpoint: endpoint.clone(), reason: "nobody there".to_owned() };
                LinkEvent::Unreachable { endpoint, reason }
            }
        };
        self.deliver(node, Happening::Link(event));
    }

    /// The application of a worker goes on.
    fn step(&mut self, node: usize) {
        let priority = if self.network.rng().bool() { 0 } else { self.network.rng().i32(-3..=3) };
        let Some(client) = self.clients.get_mut(&node) else { return };
        let wish = client.step(self.plan, &mut self.history, self.now, priority);
        if matches!(wish, Wish::Nothing) {
            return;
        }
        let think = client.think().as_micros() as u64;
        self.stats.calls += 1;
        self.trace
            .note(self.now, node, "call", || self.history.calls.last().map_or_else(String::new, ToString::to_string));
        self.with_body(node, |body, now, out| {
            if let Body::Worker(worker) = body {
                match wish {
                    Wish::Call(call, op, priority) => worker.submit(now, call, op, priority, out),
                    Wish::Barrier(call) => worker.submit_barrier(now, call, out),
                    Wish::Nothing => {}
                }
            }
        });
        let pause = Duration::from_micros(self.network.rng().u64(0..=think));
        self.network.schedule(self.now + pause, node, Happening::Step);
    }

    fn act(&mut self, node: usize, actions: Vec<Action>) {
        let mut stopped = None;
        for action in actions {
            match action {
                Action::Send { to, message } => self.send(node, to, message),
                Action::Connect { endpoint } => {
                    if let Some(target) = number_of(&endpoint) {
                        self.network.dial(self.now, node, target, endpoint);
                    }
                }
                Action::Complete { call, result } => {
                    self.trace.note(self.now, node, "done", || {
                        let error = result.as_ref().err().map_or_else(|| "ok".to_owned(), ToString::to_string);
                        format!(" {} {error}", call.0)
                    });
                    if let Some(client) = self.clients.get_mut(&node)
                        && client.completed(&mut self.history, self.now, call, result)
                    {
                        self.network.schedule(self.now, node, Happening::Step);
                    }
                }
                Action::Joined(joined) => {
                    self.nodes[node].joined = Some(joined);
                    if self.nodes[node].role == Role::Worker {
                        self.clients.insert(node, Client::new(self.plan, usize::from(joined.rank.0)));
                        self.network.schedule(self.now, node, Happening::Step);
                    }
                }
                Action::Stop(result) => {
                    stopped.get_or_insert(result);
                }
            }
        }
        let deadline = self.nodes[node].body.as_mut().and_then(Body::deadline);
        self.nodes[node].deadline = deadline.map(|at| at.saturating_duration_since(self.base));
        if let Some(result) = stopped {
            self.trace.note(self.now, node, "stop", || format!(" {result:?}"));
            self.nodes[node].state = State::Stopped(result);
            // Closing flushes, so what was said last arrives before the link goes down.
            self.links_down(node, "closed");
        }
    }

    fn send(&mut self, node: usize, to: kv_core::cluster::NodeId, message: Message) {
        let Some(target) = self.nodes.iter().position(|other| other.id == to) else {
            self.stats.unlinked += 1;
            return;
        };
        // Rosters are by far the longest control messages: the map of slots alone is longer than all others.
        if node == 0
            && message.body_bytes() > 1000
            && message.kind() == Kind::Control
            && let Ok(Control::Roster(roster)) = Control::of_message(&message)
        {
            self.rosters.push(roster);
        }
        if !matches!(message.kind(), Kind::Control | Kind::Reply) {
            let highest = self.sequences.entry((node, target)).or_default();
            if message.header().sequence <= *highest {
                self.stats.retries += 1;
            }
            *highest = message.header().sequence.max(*highest);
        }
        let from = (node, self.nodes[node].id);
        self.network.send(self.now, from, target, message, &mut self.stats);
    }

    fn links_down(&mut self, node: usize, reason: &str) {
        for peer in self.network.peers(node) {
            self.network.unlink(node, peer);
            let reason = VanError::LinkLost { node: self.nodes[node].id, reason: reason.to_owned() };
            let event = LinkEvent::Down { node: self.nodes[node].id, reason };
            self.network.send_last(self.now, node, peer, event);
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.trace.note(self.now, 0, "fault", || format!(" {fault:?}"));
        match fault {
            Fault::Crash { node, silent } => self.crash(node, silent),
            Fault::Stall { node, length } => {
                if self.nodes[node].is_up() && self.nodes[node].stalled.is_none() {
                    self.stats.stalls += 1;
                    self.nodes[node].stalled = Some(Vec::new());
                    self.network.schedule(self.now + length, node, Happening::Resume);
                }
            }
            Fault::Cut { a, b } => {
                if self.network.is_linked(a, b) {
                    self.stats.cuts += 1;
                    self.network.unlink(a, b);
                    for (from, to) in [(a, b), (b, a)] {
                        let node = self.nodes[from].id;
                        let reason = VanError::LinkLost { node, reason: "cut".to_owned() };
                        self.network.send_last(self.now, from, to, LinkEvent::Down { node, reason });
                    }
                }
            }
            Fault::Garbage { count } => {
                for _ in 0..count {
                    self.stats.garbage += 1;
                    let started = !self.rosters.is_empty();
                    let (node, from, message) = match self.plan.profile {
                        Profile::Hostile => garbage::forged(self.network.rng(), self.plan),
                        _ => garbage::harmless(self.network.rng(), self.plan, started),
                    };
                    let at = self.now + Duration::from_micros(self.network.rng().u64(0..100_000));
                    self.network.schedule(at, node, Happening::Message { sender: None, from, message });
                }
            }
        }
    }

    fn crash(&mut self, node: usize, silent: bool) {
        if self.nodes[node].is_over() {
            return;
        }
        match self.nodes[node].role {
            Role::Worker => self.stats.worker_crashes += 1,
            Role::Server => self.stats.server_crashes += 1,
            Role::Scheduler | Role::Observer => self.stats.scheduler_crashes += 1,
        }
        self.nodes[node].state = State::Crashed;
        self.nodes[node].body = None;
        self.network.crash(node);
        if !silent {
            self.links_down(node, "connection reset");
        }
    }

    /// A stopped node goes on: with its clock first, or with what has arrived meanwhile.
    fn resume(&mut self, node: usize) {
        let held = self.nodes[node].stalled.take().unwrap_or_default();
        self.trace.note(self.now, node, "resume", String::new);
        let clock_first = self.network.rng().bool();
        let is_due = self.nodes[node].deadline.is_some_and(|deadline| deadline <= self.now);
        if clock_first && is_due && self.nodes[node].is_up() {
            self.timeout(node);
        }
        for what in held {
            self.deliver(node, what);
        }
    }
}
