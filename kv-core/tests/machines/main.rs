//! Single machines, one message at a time: what the simulator has found, each in its smallest form.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_core::cluster::{Epoch, JobConfig, Member, NodeId, NodeName, Rank, Role, Roster, Standing, WorkerLoss};
use kv_core::error::Rejection;
use kv_core::machine::{
    Action, CallId, LinkEvent, Machine, MemberConfig, Op, Outcome, Resend, Scheduler, SchedulerConfig, Server,
    ServerConfig, Value, Worker, WorkerConfig, WorkerNode,
};
use kv_core::placement::SlotMap;
use kv_core::updater::{Accumulate, UpdaterRegistry};
use kv_core::wire::{Control, JoinRequest, Kind, Message, NodeStats};
use kv_core::{AsTensor, Consistency, Endpoint, Error, Key, Tensor, VanError};

const SCHEDULER: NodeId = NodeId(1);
const SERVER: NodeId = NodeId(2);
const WORKERS: [NodeId; 2] = [NodeId(10), NodeId(11)];
const TIMEOUT: Duration = Duration::from_secs(5);
const SYNC: Consistency = Consistency::Sync { deterministic: false };

mod scheduler;

fn name(role: Role, rank: u16) -> NodeName {
    NodeName { role, rank: Rank(rank), endpoint: Endpoint(format!("{role} {rank}")) }
}

fn member(node: NodeId, role: Role, rank: u16, standing: Standing) -> Member {
    Member { node, name: name(role, rank), standing }
}

fn worker(rank: u16, consistency: Consistency, now: Instant) -> Worker {
    let servers = vec![(SERVER, name(Role::Server, 0))];
    let resend = Resend::After(Duration::from_millis(100));
    let (chunk_bytes, slots) = (64, SlotMap::even(1));
    let rank = Rank(rank);
    Worker::new(WorkerConfig { rank, consistency, chunk_bytes, slots, servers, timeout: TIMEOUT, resend }, now)
}

fn server(keep_replies: bool) -> Server {
    let mut server = Server::new(ServerConfig { updaters: Arc::new(UpdaterRegistry::default()), keep_replies });
    set_standing(&mut server, [Standing::Live, Standing::Live]);
    server
}

/// Tells a server of both workers; returns what it sends.
fn set_standing(server: &mut Server, standing: [Standing; 2]) -> Vec<Message> {
    let mut out = Vec::new();
    let members: Vec<Member> =
        (0..2).zip(standing).map(|(rank, is)| member(WORKERS[rank], Role::Worker, rank as u16, is)).collect();
    server.set_workers(WorkerLoss::Fail, members.iter(), &mut out);
    sent(&out)
}

fn sent(out: &[Action]) -> Vec<Message> {
    let message =
        |action: &Action| if let Action::Send { message, .. } = action { Some(message.clone()) } else { None };
    out.iter().filter_map(message).collect()
}

fn kinds(out: &[Action]) -> Vec<Kind> {
    sent(out).iter().map(Message::kind).collect()
}

/// The calls completed, each with whether it went well.
fn completed(out: &[Action]) -> Vec<(u64, bool)> {
    let done = |action: &Action| match action {
        Action::Complete { call, result } => Some((call.0, result.is_ok())),
        _ => None,
    };
    out.iter().filter_map(done).collect()
}

fn ask(server: &mut Server, rank: usize, message: Message) -> Vec<Message> {
    let mut out = Vec::new();
    server.handle(Instant::now(), WORKERS[rank], message, &mut out);
    sent(&out)
}

/// Carries messages between one worker and the server until nothing moves; returns the completions.
fn settle(worker: &mut Worker, server: &mut Server, rank: usize, mut out: Vec<Action>) -> Vec<(u64, bool)> {
    let now = Instant::now();
    let mut done = completed(&out);
    while !sent(&out).is_empty() {
        let mut answers = Vec::new();
        sent(&out).into_iter().for_each(|message| server.handle(now, WORKERS[rank], message, &mut answers));
        out.clear();
        sent(&answers).iter().for_each(|reply| worker.handle(now, SERVER, reply, &mut out));
        done.extend(completed(&out));
    }
    done
}

fn values() -> Vec<(Key, Tensor)> {
    vec![(Key::from("w"), Tensor::new(&[2], &[0_f32; 2]).expect("two elements"))]
}

fn gradients(x: f32) -> Vec<(Key, Value)> {
    vec![(Key::from("w"), Value::from([x; 2].as_tensor()))]
}

fn pull() -> Op {
    Op::Pull(vec![Key::from("w")])
}

/// Rank 0 with an initialised key.
fn ready(consistency: Consistency) -> (Worker, Server) {
    let (now, mut out) = (Instant::now(), Vec::new());
    let (mut worker, mut server) = (worker(0, consistency, now), server(true));
    worker.submit(now, CallId(1), Op::Init(values()), 0, &mut out);
    assert_eq!(settle(&mut worker, &mut server, 0, out), [(1, true)]);
    (worker, server)
}

#[test]
fn a_worker_that_has_left_still_gets_its_lost_acknowledgements() {
    let (mut worker, mut server) = ready(Consistency::Async);
    let (now, mut out) = (Instant::now(), Vec::new());
    worker.submit(now, CallId(2), Op::Push(gradients(1.0)), 0, &mut out);
    let push = sent(&out).remove(0);
    assert_eq!(ask(&mut server, 0, push.clone())[0].header().status, 0);
    // The acknowledgement is lost, and a goodbye overtakes the second try.
    let leave = Message::new(Kind::Leave).with_header(|header| {
        header.sequence = push.header().sequence + 1;
        header.behind = 1;
    });
    assert_eq!(ask(&mut server, 0, leave)[0].header().status, 0);
    assert_eq!(ask(&mut server, 0, push.clone())[0].header().status, 0, "it was applied: that is the answer");
    let new = push.with_header(|header| header.sequence += 2);
    assert_eq!(ask(&mut server, 0, new)[0].header().status, 1, "nothing new, though");
}

#[test]
fn what_a_worker_gave_up_does_not_hold_up_its_later_requests() {
    let (mut worker, mut server) = ready(Consistency::Async);
    let (start, mut out) = (Instant::now(), Vec::new());
    worker.submit(start, CallId(2), Op::Push(gradients(1.0)), 0, &mut out);
    out.clear();
    // Nothing arrives until the worker gives up.
    let late = start + TIMEOUT * 3;
    worker.handle_timeout(late, &mut out);
    assert_eq!(completed(&out), [(2, false)]);
    out.clear();
    worker.submit(late, CallId(3), Op::Push(gradients(5.0)), 0, &mut out);
    worker.submit(late, CallId(4), pull(), 0, &mut out);
    assert_eq!(settle(&mut worker, &mut server, 0, out), [(3, true), (4, true)]);
}

#[test]
fn leaving_waits_for_open_calls_and_is_the_last_call() {
    let (mut worker, mut server) = ready(SYNC);
    let (now, mut out) = (Instant::now(), Vec::new());
    worker.submit(now, CallId(2), Op::Push(gradients(1.0)), 0, &mut out);
    worker.submit(now, CallId(3), pull(), 0, &mut out);
    worker.submit(now, CallId(4), Op::Leave, 0, &mut out);
    worker.submit(now, CallId(5), pull(), 0, &mut out);
    // The pull waits for the other worker's contribution; gone, this one would never hear the result.
    assert_eq!(kinds(&out), [Kind::Push, Kind::Pull]);
    assert_eq!(settle(&mut worker, &mut server, 0, out), [(5, false), (2, true)]);
    let replies = set_standing(&mut server, [Standing::Live, Standing::Left]);
    let mut out = Vec::new();
    replies.iter().for_each(|reply| worker.handle(now, SERVER, reply, &mut out));
    assert_eq!(completed(&out), [(3, true)]);
    assert_eq!(settle(&mut worker, &mut server, 0, out), [(3, true), (4, true)]);
}

#[test]
fn a_new_updater_keeps_its_place_among_the_calls_that_wait() {
    let (mut first, mut server) = ready(Consistency::Async);
    let (now, mut out) = (Instant::now(), Vec::new());
    // Rank 1 does not know the key yet: its push waits for a look-up, and the updater must come behind the push.
    let mut second = worker(1, Consistency::Async, now);
    second.submit(now, CallId(1), Op::Push(gradients(7.0)), 0, &mut out);
    second.submit(now, CallId(2), Op::SetUpdater(Accumulate::spec()), 0, &mut out);
    second.submit(now, CallId(3), Op::Push(gradients(1.0)), 9, &mut out);
    assert_eq!(kinds(&out), [Kind::Describe]);
    settle(&mut second, &mut server, 1, out);
    let mut out = Vec::new();
    first.submit(now, CallId(2), pull(), 0, &mut out);
    let reply = sent(&out).into_iter().flat_map(|message| ask(&mut server, 0, message)).next().unwrap();
    out.clear();
    first.handle(now, SERVER, &reply, &mut out);
    let [Action::Complete { result: Ok(Outcome::Values(values)), .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(values[0].as_slice::<f32>().unwrap(), [8.0, 8.0], "assigned 7, then added 1");
}

#[test]
fn nobody_waits_for_the_init_of_a_worker_that_is_gone() {
    let gone = [(Standing::Left, None), (Standing::Lost("power".to_owned()), Some("power"))];
    for (standing, lost) in gone {
        for told_before in [false, true] {
            let (now, mut out, mut server) = (Instant::now(), Vec::new(), server(true));
            let mut second = worker(1, SYNC, now);
            if told_before {
                set_standing(&mut server, [standing.clone(), Standing::Live]);
            }
            second.submit(now, CallId(1), Op::Init(values()), 0, &mut out);
            let mut replies = sent(&out).into_iter().flat_map(|message| ask(&mut server, 1, message)).collect();
            if !told_before {
                replies = set_standing(&mut server, [standing.clone(), Standing::Live]);
            }
            out.clear();
            replies.iter().for_each(|reply: &Message| second.handle(now, SERVER, reply, &mut out));
            let [Action::Complete { result: Err(error), .. }] = &out[..] else { panic!("{out:?}") };
            match (lost, error) {
                (None, Error::NotInitialised { .. }) => {}
                (Some(expected), Error::WorkerLost { reason, .. }) => assert_eq!(reason, expected),
                _ => panic!("{error:?}"),
            }
        }
    }
}

fn roster(standing: Standing, epoch: u32) -> Roster {
    let members = vec![
        member(SERVER, Role::Server, 0, Standing::Live),
        member(WORKERS[0], Role::Worker, 0, standing),
        member(WORKERS[1], Role::Worker, 1, Standing::Live),
    ];
    Roster { epoch: Epoch(epoch), job: JobConfig::default(), slots: SlotMap::even(1), members }
}

fn say(node: &mut WorkerNode, now: Instant, control: &Control) -> Vec<Action> {
    let mut out = Vec::new();
    node.handle(now, SCHEDULER, control.to_message().expect("it is short"), &mut out);
    out
}

/// Rank 0 as a member that has joined.
fn joined(now: Instant) -> WorkerNode {
    let mut out = Vec::new();
    let scheduler = Endpoint("scheduler".to_owned());
    let member = MemberConfig {
        node: WORKERS[0],
        role: Role::Worker,
        rank: None,
        endpoint: Endpoint("worker 0".to_owned()),
        scheduler: scheduler.clone(),
        start_timeout: TIMEOUT,
    };
    let mut node = WorkerNode::new(member, SYNC, TIMEOUT, Resend::Never, now, &mut out);
    node.handle_link(now, LinkEvent::Up { endpoint: scheduler, node: SCHEDULER }, &mut out);
    out.extend(say(&mut node, now, &Control::Roster(roster(Standing::Live, 1))));
    out.clear();
    node.submit_barrier(now, CallId(0), &mut out);
    assert_eq!(completed(&out), [(0, false)], "not before it has joined");
    node.handle_link(now, LinkEvent::Up { endpoint: name(Role::Server, 0).endpoint, node: SERVER }, &mut out);
    assert!(out.iter().any(|action| matches!(action, Action::Joined(_))));
    node
}

fn controls(out: &[Action]) -> Vec<Control> {
    sent(out)
        .iter()
        .filter(|message| message.kind() == Kind::Control)
        .map(|m| Control::of_message(m).expect("a machine wrote it"))
        .collect()
}

fn answer(node: &mut WorkerNode, now: Instant, sequence: u64) -> Vec<Action> {
    let mut out = Vec::new();
    let reply = Message::new(Kind::Reply).with_header(|header| header.sequence = sequence);
    node.handle(now, SERVER, reply, &mut out);
    out
}

#[test]
fn leaving_waits_for_a_barrier() {
    let (now, mut out) = (Instant::now(), Vec::new());
    let mut node = joined(now);
    node.submit_barrier(now, CallId(1), &mut out);
    node.submit(now, CallId(2), Op::Leave, 0, &mut out);
    node.submit_barrier(now, CallId(3), &mut out);
    node.submit(now, CallId(4), pull(), 0, &mut out);
    assert_eq!(completed(&out), [(3, false), (4, false)], "after the last call");
    assert!(!kinds(&out).contains(&Kind::Leave), "the scheduler would forget the barrier");
    let out = say(&mut node, now, &Control::BarrierRelease { number: 1 });
    assert_eq!((completed(&out), kinds(&out)), (vec![(1, true)], vec![Kind::Leave]));
    assert_eq!(controls(&answer(&mut node, now, 1)), [Control::Leave]);
    assert_eq!(completed(&say(&mut node, now, &Control::LeaveAck)), [(2, true)]);
}

#[test]
fn leaving_ends_whatever_becomes_of_the_scheduler() {
    let shutdown = |failed| Some(Control::Shutdown { failed });
    let ends = [
        (None, true),
        (Some(Control::Roster(roster(Standing::Left, 2))), true),
        (shutdown(None), true),
        (shutdown(Some("because".to_owned())), false),
    ];
    for (said, well) in ends {
        let (now, mut out) = (Instant::now(), Vec::new());
        let mut node = joined(now);
        node.submit(now, CallId(1), Op::Leave, 0, &mut out);
        answer(&mut node, now, 1);
        let out = match said {
            Some(control) => say(&mut node, now, &control),
            None => {
                let (mut now, mut out) = (now, Vec::new());
                while completed(&out).is_empty() {
                    now = node.deadline().expect("something is awaited").max(now);
                    node.handle_timeout(now, &mut out);
                }
                out
            }
        };
        assert_eq!(completed(&out), [(1, well)]);
        assert!(out.iter().any(|action| matches!(action, Action::Stop(result) if result.is_ok() == well)));
    }
}

#[test]
fn a_barrier_waits_for_everything_the_caller_has_changed() {
    for op in [Op::Init(values()), Op::SetUpdater(Accumulate::spec()), Op::Push(gradients(1.0))] {
        let (now, mut out) = (Instant::now(), Vec::new());
        let mut node = joined(now);
        node.submit(now, CallId(1), op, 0, &mut out);
        node.submit_barrier(now, CallId(2), &mut out);
        assert_eq!(controls(&out), []);
    }
}

#[test]
fn settings_that_do_not_work_are_refused() {
    let wrong: [fn(&mut JobConfig); 5] = [
        |job| job.heartbeat_every = Duration::ZERO,
        |job| job.heartbeat_every = Duration::MAX,
        |job| job.dead_after = Duration::MAX,
        |job| job.dead_after = job.heartbeat_every,
        |job| job.chunk_bytes = 65,
    ];
    for spoil in wrong {
        let now = Instant::now();
        let mut node = joined(now);
        let mut roster = roster(Standing::Live, 2);
        spoil(&mut roster.job);
        let out = say(&mut node, now, &Control::Roster(roster));
        assert!(matches!(&out[..], [Action::Stop(Err(Error::Protocol(_)))]), "{out:?}");
    }
}

#[test]
fn no_number_from_the_scheduler_upsets_a_barrier() {
    let (now, mut out) = (Instant::now(), Vec::new());
    let mut node = joined(now);
    node.submit_barrier(now, CallId(1), &mut out);
    for number in [0, 2, u64::MAX] {
        assert_eq!(completed(&say(&mut node, now, &Control::BarrierRelease { number })), []);
    }
    assert_eq!(completed(&say(&mut node, now, &Control::BarrierRelease { number: 1 })), [(1, true)]);
}

#[test]
fn a_timeout_without_end_does_not_overflow() {
    let now = Instant::now();
    let mut out = Vec::new();
    let config = WorkerConfig {
        rank: Rank(0),
        consistency: SYNC,
        chunk_bytes: 64,
        slots: SlotMap::even(1),
        servers: vec![(SERVER, name(Role::Server, 0))],
        timeout: Duration::MAX,
        resend: Resend::Never,
    };
    let mut worker = Worker::new(config, now);
    worker.submit(now, CallId(1), pull(), 0, &mut out);
    assert!(worker.deadline().is_some());
    worker.handle_timeout(now, &mut out);
}

#[test]
fn the_late_failure_of_a_barrier_does_not_end_the_next_try() {
    let (now, mut out) = (Instant::now(), Vec::new());
    let mut node = joined(now);
    let rejection = Rejection::BarrierIncomplete { missing: vec![Rank(1)], waited: TIMEOUT };
    let failed = Control::BarrierFailed { number: 1, attempt: 1, rejection };
    node.submit_barrier(now, CallId(1), &mut out);
    assert_eq!(completed(&say(&mut node, now, &failed)), [(1, false)]);
    out.clear();
    node.submit_barrier(now, CallId(2), &mut out);
    assert!(matches!(controls(&out)[..], [Control::BarrierEnter { number: 1, attempt: 2, .. }]));
    assert_eq!(completed(&say(&mut node, now, &failed)), []);
    assert_eq!(completed(&say(&mut node, now, &Control::BarrierRelease { number: 1 })), [(2, true)]);
}

#[test]
fn a_worker_far_ahead_is_acknowledged_when_the_others_catch_up() {
    let (mut first, mut server) = ready(SYNC);
    let now = Instant::now();
    let mut done = Vec::new();
    for call in 2..12 {
        let mut out = Vec::new();
        first.submit(now, CallId(call), Op::Push(gradients(1.0)), 0, &mut out);
        done.extend(settle(&mut first, &mut server, 0, out));
    }
    assert_eq!(done.len(), kv_core::limits::OPEN_ROUNDS_MAX, "ten pushes, eight rounds may be open");
    let (mut out, mut second) = (Vec::new(), worker(1, SYNC, now));
    for call in 0..2 {
        second.submit(now, CallId(call), Op::Push(gradients(1.0)), 0, &mut out);
    }
    let question = sent(&out).remove(0);
    let known = ask(&mut server, 1, question).remove(0);
    out.clear();
    second.handle(now, SERVER, &known, &mut out);
    for (push, acknowledged) in sent(&out).into_iter().zip([10, 11]) {
        let mut answers = Vec::new();
        server.handle(now, WORKERS[1], push, &mut answers);
        answers.retain(|action| matches!(action, Action::Send { to, .. } if *to == WORKERS[0]));
        let mut out = Vec::new();
        sent(&answers).iter().for_each(|reply| first.handle(now, SERVER, reply, &mut out));
        assert_eq!(completed(&out), [(acknowledged, true)], "each round that closes makes room for one");
    }
}

/// When the scheduler dies, servers end too, and their links may be seen to break first: they are not the cause.
#[test]
fn a_broken_link_to_a_server_waits_for_the_verdict_but_not_long() {
    let broken = |node| LinkEvent::Down { node, reason: VanError::LinkLost { node, reason: "closed".to_owned() } };
    let spec = || Op::SetUpdater(Accumulate::spec());
    let error = |out: &[Action]| {
        out.iter().find_map(|action| match action {
            Action::Complete { call: CallId(1), result } => Some(result.clone().unwrap_err()),
            _ => None,
        })
    };
    let now = Instant::now();
    let mut node = joined(now);
    let mut out = Vec::new();
    node.submit(now, CallId(1), spec(), 0, &mut out);
    node.handle_link(now, broken(SERVER), &mut out);
    assert!(controls(&out).iter().any(|c| matches!(c, Control::PeerLost { node: SERVER, .. })), "told at once");
    assert!(error(&out).is_none());
    node.handle_link(now, broken(SCHEDULER), &mut out);
    assert!(matches!(error(&out), Some(Error::SchedulerLost { .. })), "{:?}", error(&out));

    let mut node = joined(now);
    let mut out = Vec::new();
    node.submit(now, CallId(1), spec(), 0, &mut out);
    node.handle_link(now, broken(SERVER), &mut out);
    let verdict = now + Duration::from_millis(500);
    assert!(node.deadline().is_some_and(|deadline| deadline <= verdict));
    node.handle_timeout(verdict, &mut out);
    assert!(matches!(error(&out), Some(Error::ServerLost { .. })), "{:?}", error(&out));
}
