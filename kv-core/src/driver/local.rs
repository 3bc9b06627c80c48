//! The `local` store: the same machines, with nothing between them.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;

use crate::cluster::{Member, NodeId, NodeName, Rank, Role, Standing, WorkerLoss};
use crate::consistency::Consistency;
use crate::error::Error;
use crate::limits::TIMEOUT_DEFAULT;
use crate::machine::{Action, CallId, Op, Outcome, Resend, Server, ServerConfig, Worker, WorkerConfig};
use crate::placement::SlotMap;
use crate::updater::{Updater, UpdaterRegistry};
use crate::van::Endpoint;

const WORKER: NodeId = NodeId(1);
const SERVER: NodeId = NodeId(2);

/// One worker and one server in this process: same semantics, same errors as a cluster.
pub struct LocalStore {
    worker: Worker,
    server: Server,
    next_call: u64,
    finished: HashMap<CallId, Result<Outcome, Error>>,
}

impl LocalStore {
    /// An empty store that knows these updaters.
    #[must_use]
    pub fn new(updaters: Arc<UpdaterRegistry>) -> Self {
        let endpoint = Endpoint("local".to_owned());
        let name = |role| NodeName { role, rank: Rank(0), endpoint: endpoint.clone() };
        let config = WorkerConfig {
            rank: Rank(0),
            consistency: Consistency::Sync { deterministic: true },
            // A value in one piece, so that an updater of the user's own sees it whole.
            chunk_bytes: u64::MAX,
            slots: SlotMap::even(1),
            servers: vec![(SERVER, name(Role::Server))],
            timeout: TIMEOUT_DEFAULT,
            resend: Resend::Never,
        };
        let mut server = Server::new(ServerConfig { updaters, keep_replies: false });
        let member = Member { node: WORKER, name: name(Role::Worker), standing: Standing::Live };
        server.set_workers(WorkerLoss::Fail, std::iter::once(&member), &mut Vec::new());
        Self { worker: Worker::new(config, Instant::now()), server, next_call: 0, finished: HashMap::new() }
    }

    /// Uses an updater of this process, code and all.
    pub fn set_updater(&mut self, updater: Arc<dyn Updater>) {
        self.server.set_local_updater(updater);
    }

    /// Runs a call to its end. Every push completes its round at once, as this is the only worker.
    ///
    /// # Errors
    /// Those of the store's operations.
    pub fn call(&mut self, op: Op) -> Result<Outcome, Error> {
        self.next_call += 1;
        let call = CallId(self.next_call);
        let now = Instant::now();
        let mut actions = Vec::new();
        self.worker.submit(now, call, op, 0, &mut actions);
        let mut turn = actions;
        while !turn.is_empty() {
            let mut next = Vec::new();
            for action in turn {
                match action {
                    Action::Send { to: SERVER, message } => self.server.handle(now, WORKER, message, &mut next),
                    Action::Send { message, .. } => self.worker.handle(now, SERVER, &message, &mut next),
                    Action::Complete { call, result } => {
                        self.finished.insert(call, result);
                    }
                    Action::Connect { .. } | Action::Joined(_) | Action::Stop(_) => {}
                }
            }
            turn = next;
        }
        let unfinished = || Err(Error::Protocol("a local call did not complete".to_owned()));
        self.finished.remove(&call).unwrap_or_else(unfinished)
    }
}
