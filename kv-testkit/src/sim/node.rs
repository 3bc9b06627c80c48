//! A simulated node: one machine, and what the world has done to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_core::cluster::{NodeId, Role};
use kv_core::machine::{
    Action, Joined, LinkEvent, Machine, MemberConfig, Scheduler, SchedulerConfig, ServerConfig, ServerNode, WorkerNode,
};
use kv_core::updater::UpdaterRegistry;
use kv_core::wire::Message;
use kv_core::{Endpoint, Error};

use super::network::Happening;
use super::plan::Plan;

/// The machine of a node.
pub(super) enum Body {
    Scheduler(Box<Scheduler>),
    Server(Box<ServerNode>),
    Worker(Box<WorkerNode>),
}

/// What a node is doing.
pub(super) enum State {
    Waiting,
    Up,
    Crashed,
    Stopped(Result<(), Error>),
}

/// A node.
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) role: Role,
    pub(super) endpoint: Endpoint,
    pub(super) body: Option<Body>,
    pub(super) state: State,
    /// The machine's deadline, as virtual time.
    pub(super) deadline: Option<Duration>,
    /// What arrives while it is stopped.
    pub(super) stalled: Option<Vec<Happening>>,
    pub(super) joined: Option<Joined>,
}

impl Node {
    pub(super) fn new(plan: &Plan, number: usize) -> Self {
        let role = match number {
            0 => Role::Scheduler,
            _ if number <= plan.servers => Role::Server,
            _ => Role::Worker,
        };
        Self {
            id: plan.ids[number],
            role,
            endpoint: endpoint(number),
            body: None,
            state: State::Waiting,
            deadline: None,
            stalled: None,
            joined: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Whether nothing will happen to it any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Crashed | State::Stopped(_))
    }

    pub(super) fn start(&mut self, plan: &Plan, number: usize, now: Instant, out: &mut Vec<Action>) {
        let start_timeout = Duration::from_secs(60);
        let member = MemberConfig {
            node: self.id,
            role: self.role,
            rank: plan.wanted[number],
            endpoint: self.endpoint.clone(),
            scheduler: endpoint(0),
            start_timeout,
        };
        self.state = State::Up;
        self.body = Some(match self.role {
            Role::Server => {
                let updaters = Arc::new(UpdaterRegistry::default());
                let config = ServerConfig { updaters, keep_replies: plan.keep_replies };
                Body::Server(Box::new(ServerNode::new(member, config, now, out)))
            }
            Role::Worker => {
                // The mad worker's goodbye may go under in its own nonsense.
                let is_mad = plan.mad.is_some() && number + 1 == plan.nodes();
                let timeout = if is_mad { Duration::from_secs(5) } else { plan.timeout };
                let worker = WorkerNode::new(member, plan.consistency, timeout, plan.resend, now, out);
                Body::Worker(Box::new(worker))
            }
            Role::Scheduler | Role::Observer => {
                let config = SchedulerConfig {
                    workers: plan.workers as u16,
                    servers: plan.servers as u16,
                    job: plan.job.clone(),
                    start_timeout,
                    linger: plan.linger,
                };
                Body::Scheduler(Box::new(Scheduler::new(config, now)))
            }
        });
    }
}

impl Body {
    fn machine(&mut self) -> &mut dyn Machine {
        match self {
            Self::Scheduler(machine) => machine.as_mut(),
            Self::Server(machine) => machine.as_mut(),
            Self::Worker(machine) => machine.as_mut(),
        }
    }

    pub(super) fn handle(&mut self, now: Instant, from: NodeId, message: Message, out: &mut Vec<Action>) {
        self.machine().handle(now, from, message, out);
    }

    pub(super) fn handle_link(&mut self, now: Instant, event: LinkEvent, out: &mut Vec<Action>) {
        self.machine().handle_link(now, event, out);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.machine().handle_timeout(now, out);
    }

    pub(super) fn deadline(&mut self) -> Option<Instant> {
        self.machine().deadline()
    }
}

/// The address of a node.
pub(super) fn endpoint(number: usize) -> Endpoint {
    Endpoint(format!("sim://{number}"))
}

/// The node at an address.
pub(super) fn number_of(endpoint: &Endpoint) -> Option<usize> {
    endpoint.0.strip_prefix("sim://")?.parse().ok()
}
