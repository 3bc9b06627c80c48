//! Drivers await. A driver takes what its van delivers, feeds its machine, does what the machine wants, and sleeps
//! until the machine's deadline. There is no decision in here.
//!
//! A driver never waits for a full link: what does not fit waits in a per-peer outbox while the driver goes on reading,
//! so two nodes that fill each other's links cannot block each other. Outboxes are bounded by what the machines allow
//! to be unanswered.

mod local;
mod outbox;
mod status;
mod worker;

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use crate::error::Error;
use crate::machine::{
    Action, CallId, Joined, LinkEvent, Machine, MemberConfig, Outcome, Scheduler, SchedulerConfig, ServerConfig,
    ServerNode,
};
use crate::van::{Endpoint, Inbox, Van, VanError, VanEvent};
use outbox::Outbox;

pub use local::LocalStore;
pub use status::ask_status;
pub use worker::{Submitted, WindowLimits, WorkerHandle, WorkerSettings, start_worker};

/// Events taken from the inbox at a time: enough to make a busy loop efficient, few enough to keep it fair.
const BATCH: usize = 256;

/// How long a stopping driver tries to deliver what it has still to say.
const FLUSH: std::time::Duration = std::time::Duration::from_secs(5);

/// The application's side of a driver: where its commands come from and where results go.
trait Application<M> {
    type Command;

    /// The next command; never resolves when there are none.
    fn next(&mut self) -> impl Future<Output = Option<Self::Command>> + Send;

    fn run(&mut self, machine: &mut M, now: Instant, command: Self::Command, out: &mut Vec<Action>);

    /// Whether somebody waits for something to happen.
    fn waits(&self) -> bool {
        true
    }

    /// No command will come any more.
    fn abandoned(&mut self, machine: &mut M, now: Instant, out: &mut Vec<Action>);

    fn completed(&mut self, call: CallId, result: Result<Outcome, Error>);

    fn joined(&mut self, place: Joined);

    /// The machine is done, with this result; nothing will be answered any more.
    fn stopped(&mut self, _result: &Result<(), Error>) {}
}

/// Runs a scheduler until its job is over.
///
/// # Errors
/// Why the job failed: nodes missing, a server or worker lost.
///
/// # Cancel safety
/// Dropping the future is like killing the node.
pub async fn run_scheduler(config: SchedulerConfig, van: Arc<dyn Van>, inbox: Inbox) -> Result<(), Error> {
    let machine = Scheduler::new(config, now());
    drive(machine, Vec::new(), van, inbox, Silent(|_| {})).await
}

/// Runs a server until its job is over. `joined` hears of its place in the job.
///
/// # Errors
/// Why it could not join, or why the job failed.
///
/// # Cancel safety
/// Dropping the future is like killing the node.
pub async fn run_server(
    member: MemberConfig,
    config: ServerConfig,
    van: Arc<dyn Van>,
    inbox: Inbox,
    joined: impl FnMut(Joined) + Send,
) -> Result<(), Error> {
    let mut actions = Vec::new();
    let machine = ServerNode::new(member, config, now(), &mut actions);
    drive(machine, actions, van, inbox, Silent(joined)).await
}

/// A node without an application.
struct Silent<F>(F);

impl<M, F: FnMut(Joined) + Send> Application<M> for Silent<F> {
    type Command = ();

    async fn next(&mut self) -> Option<()> {
        pending().await
    }

    fn run(&mut self, _machine: &mut M, _now: Instant, (): (), _out: &mut Vec<Action>) {}

    fn abandoned(&mut self, _machine: &mut M, _now: Instant, _out: &mut Vec<Action>) {}

    fn completed(&mut self, _call: CallId, _result: Result<Outcome, Error>) {}

    fn joined(&mut self, place: Joined) {
        (self.0)(place);
    }
}

async fn drive<M: Machine, A: Application<M>>(
    mut machine: M,
    mut actions: Vec<Action>,
    van: Arc<dyn Van>,
    mut inbox: Inbox,
    mut application: A,
) -> Result<(), Error> {
    let mut outbox = Outbox::new(Arc::clone(&van));
    let mut connecting: FuturesUnordered<BoxFuture<'static, LinkEvent>> = FuturesUnordered::new();
    let mut events = Vec::with_capacity(BATCH);
    let mut has_application = true;
    let result = loop {
        let mut stopped = None;
        for action in actions.drain(..) {
            match action {
                Action::Send { to, message } => outbox.send(to, message),
                Action::Connect { endpoint } => connecting.push(connect(Arc::clone(&van), endpoint)),
                Action::Complete { call, result } => application.completed(call, result),
                Action::Joined(place) => application.joined(place),
                Action::Stop(result) => {
                    stopped.get_or_insert(result);
                }
            }
        }
        if let Some(result) = stopped {
            break result;
        }
        let deadline = machine.deadline();
        // Commands of the own application first, then what came from others, then time.
        tokio::select! {
            biased;
            command = application.next(), if has_application => match command {
                Some(command) => application.run(&mut machine, now(), command, &mut actions),
                None => {
                    has_application = false;
                    application.abandoned(&mut machine, now(), &mut actions);
                }
            },
            Some(()) = outbox.progress() => {}
            Some(event) = connecting.next() => machine.handle_link(now(), event, &mut actions),
            count = inbox.recv_many(&mut events, BATCH) => {
                if count == 0 {
                    break Err(VanError::Closed.into());
                }
                let now = now();
                for event in events.drain(..) {
                    match event {
                        VanEvent::Message { from, message } => machine.handle(now, from, message, &mut actions),
                        VanEvent::PeerDown { node, reason } => {
                            outbox.forget(node);
                            machine.handle_link(now, LinkEvent::Down { node, reason }, &mut actions);
                        }
                    }
                }
            }
            () = look(&*van), if application.waits() => {}
            () = sleep_until(deadline) => {}
        }
        // A busy inbox must not starve the clock.
        let now = now();
        if machine.deadline().is_some_and(|deadline| deadline <= now) {
            machine.handle_timeout(now, &mut actions);
        }
    };
    application.stopped(&result);
    let flush = async {
        while outbox.progress().await.is_some() {}
        van.close().await
    };
    if let Ok(Err(error)) = tokio::time::timeout(FLUSH, flush).await {
        tracing::debug!(%error, "closing the van");
    }
    result
}

fn connect(van: Arc<dyn Van>, endpoint: Endpoint) -> BoxFuture<'static, LinkEvent> {
    Box::pin(async move {
        match van.connect(&endpoint).await {
            Ok(node) => LinkEvent::Up { endpoint, node },
            Err(reason) => LinkEvent::Unreachable { endpoint, reason },
        }
    })
}

/// Ends when the van has seen something happen, and otherwise waits for ever.
async fn look(van: &dyn Van) {
    if !van.look() {
        pending().await
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

/// The time, as the runtime sees it (tests may pause it).
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
