//! Nonsense: what strangers, a mad worker and forgers send.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use kv_core::cluster::{Epoch, JobConfig, Member, NodeId, NodeName, Rank, Role, Roster, Standing, WorkerLoss};
use kv_core::error::Rejection;
use kv_core::placement::SlotMap;
use kv_core::wire::{
    Control, Entry, JoinRequest, KeyMeta, Kind, Message, NodeStats, UpdaterSpec, Waiting, encode_part, entries_part,
};
use kv_core::{Consistency, DType, Endpoint, Key};

use super::plan::Plan;
use super::script::pick;

const KINDS: [Kind; 8] =
    [Kind::Init, Kind::Push, Kind::Pull, Kind::PushPull, Kind::Describe, Kind::SetUpdater, Kind::Leave, Kind::Reply];

/// A message that a correct cluster must bear without any harm to the others: to whom, from whom, what.
///
/// `started`: everybody has joined. Before that, a stranger who asks to join simply is no stranger.
pub(super) fn harmless(rng: &mut Rng, plan: &Plan, started: bool) -> (usize, NodeId, Message) {
    let node = rng.usize(0..plan.nodes());
    let from_member = rng.bool();
    let from = if from_member { plan.ids[plan.nodes() - 1] } else { NodeId(rng.u64(..) | 1 << 63) };
    let message = match rng.u8(0..4) {
        0 => Message::new(Kind::Control).with_part(0, noise(rng)),
        1 if from_member || !started => harmless_control(rng),
        1 => control(rng, plan),
        _ if from_member => data(rng, plan, false),
        _ => data(rng, plan, true),
    };
    (node, from, message)
}

/// A message in the name of any node, with anything in it.
pub(super) fn forged(rng: &mut Rng, plan: &Plan) -> (usize, NodeId, Message) {
    let (node, from) = (rng.usize(0..plan.nodes()), *pick(rng, &plan.ids));
    let message = if rng.bool() { control(rng, plan) } else { data(rng, plan, true) };
    (node, from, message)
}

/// Control messages that mean nothing when a member says them.
fn harmless_control(rng: &mut Rng) -> Message {
    let control = match rng.u8(0..6) {
        0 => Control::BarrierRelease { number: rng.u64(0..3) },
        1 => Control::LeaveAck,
        2 => Control::Shutdown { failed: None },
        3 => Control::HeartbeatAck,
        4 => Control::StatusRequest,
        _ => Control::PeerLost { node: NodeId(rng.u64(..) | 1 << 63), reason: "nonsense".to_owned() },
    };
    in_message(&control)
}

fn control(rng: &mut Rng, plan: &Plan) -> Message {
    let node = *pick(rng, &plan.ids);
    let number = *pick(rng, &[0, 1, 2, 3, u64::MAX]);
    let span = *pick(rng, &[Duration::ZERO, Duration::from_millis(1), Duration::from_secs(9), Duration::MAX]);
    in_message(&match rng.u8(0..13) {
        0 => Control::Join(JoinRequest {
            role: *pick(rng, &[Role::Worker, Role::Server, Role::Scheduler, Role::Observer]),
            rank: rng.bool().then(|| Rank(rng.u16(..))),
            endpoint: Endpoint("sim://nowhere".to_owned()),
        }),
        1 => Control::Waiting(Waiting { workers: (9, 9), servers: (9, 9) }),
        2 => Control::JoinRefused("nonsense".to_owned()),
        3 => Control::Roster(roster(rng, plan)),
        4 => Control::Heartbeat(NodeStats { epoch: Epoch(rng.u32(..)), ..NodeStats::default() }),
        5 => Control::BarrierEnter { number, attempt: number, timeout: span },
        6 => Control::BarrierRelease { number },
        7 => Control::BarrierFailed { number, attempt: rng.u64(0..50), rejection: rejection(rng) },
        8 => Control::PeerLost { node, reason: "nonsense".to_owned() },
        9 => Control::Leave,
        10 => Control::LeaveAck,
        11 => Control::Shutdown { failed: rng.bool().then(|| "nonsense".to_owned()) },
        _ => Control::StatusRequest,
    })
}

fn roster(rng: &mut Rng, plan: &Plan) -> Roster {
    let span = [Duration::ZERO, Duration::from_micros(1), Duration::from_secs(1), Duration::MAX];
    let job = JobConfig {
        chunk_bytes: *pick(rng, &[0, 1, 7, 64, u32::MAX]),
        worker_loss: if rng.bool() { WorkerLoss::Fail } else { WorkerLoss::Continue },
        heartbeat_every: *pick(rng, &span),
        dead_after: *pick(rng, &span),
    };
    let member = |rng: &mut Rng, node: NodeId| Member {
        node,
        name: NodeName {
            role: *pick(rng, &[Role::Worker, Role::Server, Role::Worker]),
            rank: Rank(*pick(rng, &[0, 1, 2, u16::MAX])),
            endpoint: Endpoint(format!("sim://{}", rng.u8(0..6))),
        },
        standing: match rng.u8(0..4) {
            0 => Standing::Left,
            1 => Standing::Lost("nonsense".to_owned()),
            _ => Standing::Live,
        },
    };
    let members = plan.ids.iter().map(|&node| member(rng, node)).collect();
    Roster { epoch: Epoch(rng.u32(..)), job, slots: SlotMap::even(rng.u16(1..5)), members }
}

fn rejection(rng: &mut Rng) -> Rejection {
    match rng.u8(0..4) {
        0 => Rejection::NotAMember,
        1 => Rejection::Malformed("nonsense".to_owned()),
        2 => Rejection::BarrierIncomplete { missing: vec![Rank(7)], waited: Duration::MAX },
        _ => Rejection::Updater("nonsense".to_owned()),
    }
}

/// A data message. `valid`: it may happen to be a correct request for a key of the job.
fn data(rng: &mut Rng, plan: &Plan, valid: bool) -> Message {
    let kind = *pick(rng, &KINDS);
    let mut entries = Vec::new();
    for _ in 0..rng.usize(0..4) {
        entries.push(entry(rng, plan, valid));
    }
    if !valid {
        // One bad entry spoils the request: a mad worker's correct contribution would simply be a contribution.
        entries.push(Entry { key: foreign(rng).id(), bytes: 3, chunk: 0, dtype: 200, reserved: [0; 3] });
    }
    let bytes: u64 = entries.iter().fold(0, |sum, entry| entry.bytes.saturating_add(sum));
    let values = if bytes < 4096 && rng.u8(..) < 200 { Bytes::from(vec![1; bytes as usize]) } else { noise(rng) };
    let mut message = match kind {
        Kind::Describe => Message::new(kind)
            .with_part(1, encode_part(&(vec![foreign(rng), Key::from(0)], rng.bool())).unwrap_or_default()),
        Kind::SetUpdater => Message::new(kind).with_part(
            1,
            encode_part(&UpdaterSpec { name: "nonsense".to_owned(), settings: String::new() }).unwrap_or_default(),
        ),
        Kind::Init if rng.bool() => init(rng),
        Kind::Reply if rng.bool() => Message::new(kind).with_part(0, encode_part(&rejection(rng)).unwrap_or_default()),
        kind => Message::new(kind).with_part(0, entries_part(&entries)).with_part(3, values),
    };
    if rng.u8(..) < 40 {
        message = Message::new(kind).with_part(rng.usize(0..4), noise(rng));
    }
    let sequence = *pick(rng, &[0, 1, 2, 3, 5, 8, 13, 21, 5000, u64::MAX]);
    let behind = *pick(rng, &[0, 0, 1, 7, u32::MAX]);
    let (status, deadline_ms) = (u16::from(rng.u8(..) < 40), *pick(rng, &[0, 1, 500, u32::MAX]));
    message.with_header(|header| {
        header.sequence = sequence;
        header.behind = behind;
        header.status = status;
        header.deadline_ms = deadline_ms;
    })
}

fn entry(rng: &mut Rng, plan: &Plan, valid: bool) -> Entry {
    let spec = pick(rng, &plan.keys);
    let key = if rng.bool() { spec.key.id() } else { foreign(rng).id() };
    let bytes = if valid { (spec.len * spec.dtype.size()) as u64 } else { rng.u64(0..100) };
    Entry {
        key,
        bytes: if rng.u8(..) < 20 { u64::MAX } else { bytes.min(64) },
        chunk: *pick(rng, &[0, 0, 1, u32::MAX]),
        dtype: if rng.bool() { spec.dtype.code() } else { rng.u8(..) },
        reserved: [0; 3],
    }
}

/// A correct `init` of a key that nobody else uses.
fn init(rng: &mut Rng) -> Message {
    let key = foreign(rng);
    let entry = Entry::new(key.id(), *pick(rng, &[0, 1, u32::MAX]), DType::F32, 8);
    let shape = pick(rng, &[vec![2], vec![u64::MAX, 2], vec![1; 40]]).clone();
    let meta = KeyMeta { key, dtype: DType::F32, shape, consistency: Consistency::Async };
    Message::new(Kind::Init)
        .with_part(0, entries_part(&[entry]))
        .with_part(1, encode_part(&vec![meta]).unwrap_or_default())
        .with_part(3, Bytes::from(vec![0; 8]))
}

fn foreign(rng: &mut Rng) -> Key {
    Key::from(format!("foreign {}", rng.u8(0..4)))
}

fn noise(rng: &mut Rng) -> Bytes {
    let len = rng.usize(0..200);
    Bytes::from((0..len).map(|_| rng.u8(..)).collect::<Vec<u8>>())
}

fn in_message(control: &Control) -> Message {
    control.to_message().unwrap_or_else(|_| Message::new(Kind::Control))
}
