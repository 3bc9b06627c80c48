//! Whoever can connect can say anything; the job goes on, with right values, and nobody's memory grows.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kv::Key;
use kv_core::cluster::{NodeId, Rank, Role};
use kv_core::wire::{
    Control, Entry, HEADER_BYTES, Header, JoinRequest, KeyMeta, Kind, Message, NodeStats, UpdaterSpec, encode_part,
    entries_part,
};
use kv_core::{Buffer, Consistency, DType, Endpoint, KeyId, Van, VanError};
use kv_transport_tcp::{TcpConfig, TcpVan};

use crate::cluster::{Cluster, Task, block_on, reserve_memory, start};

/// A job that trains, checks every value, and does not stop before it is told to.
struct Training {
    cluster: Cluster,
    over: Arc<AtomicBool>,
    workers: [Task<u64>; 2],
}

const LEN: usize = 100;

impl Training {
    fn start() -> Self {
        let cluster = Cluster::start(2, 2);
        let over = Arc::new(AtomicBool::new(false));
        let work = |rank| {
            let over = Arc::clone(&over);
            cluster.worker("dist_sync", rank, move |store| {
                store.init_all(["w", "over"], [&[0.0_f32; LEN][..], &[0.0]]).unwrap();
                let mut rounds = 0_u64;
                // Worker 0 says when the end has come, so that both do the same number of rounds.
                loop {
                    let done = f32::from(u8::from(rank == 0 && over.load(Ordering::Acquire)));
                    let gradient = [(rounds % 1000) as f32 + f32::from(rank); LEN];
                    let all = store.push_pull_all(["w", "over"], [&gradient[..], &[done]]).unwrap().wait().unwrap();
                    let expected = 2.0 * (rounds % 1000) as f32 + 1.0;
                    assert_eq!(all[0].as_slice::<f32>().unwrap(), [expected; LEN]);
                    rounds += 1;
                    if all[1].as_slice::<f32>().unwrap() == [1.0] {
                        break;
                    }
                }
                store.close().unwrap();
                rounds
            })
        };
        let workers = [0, 1].map(work);
        while cluster.status().nodes.iter().map(|node| node.stats.keys).max() < Some(1) {}
        Self { cluster, over, workers }
    }

    /// The scheduler's address, and those of all other nodes.
    fn addresses(&self) -> Vec<String> {
        let settings = &self.cluster.settings;
        let scheduler = format!("{}:{}", settings.scheduler_host.clone().unwrap(), settings.scheduler_port.unwrap());
        let members = self.cluster.status().nodes.into_iter().map(|node| address(&node.name.endpoint));
        std::iter::once(scheduler).chain(members).collect()
    }

    fn servers(&self) -> Vec<Endpoint> {
        let nodes = self.cluster.status().nodes.into_iter();
        nodes.filter(|node| node.name.role == Role::Server).map(|node| node.name.endpoint).collect()
    }

    /// The workers have got right values throughout, and everybody ends well.
    fn end(self) {
        self.over.store(true, Ordering::Release);
        let [a, b] = self.workers.map(Task::join);
        assert!(a > 0 && a == b, "{a} and {b} rounds");
        self.cluster.end();
    }
}

fn address(endpoint: &Endpoint) -> String {
    endpoint.0.strip_prefix("tcp://").unwrap().to_owned()
}

/// Sends `bytes`, and reads whatever comes back until the other side hangs up or has nothing to say for a while.
/// Every outcome is right, as long as the other side lives.
fn say(address: &str, bytes: &[u8]) {
    let mut stream = connect(address);
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    stream
}

/// The handshake of a node of this job; see `kv-transport-tcp/src/handshake.rs`.
fn hello(node: u64) -> Vec<u8> {
    let (job, endpoint) = ("kv", "tcp://127.0.0.1:9");
    let mut bytes = b"kvps\x01\x02".to_vec();
    bytes.extend([job.len() as u8, endpoint.len() as u8]);
    bytes.extend(node.to_le_bytes());
    bytes.extend(job.bytes().chain(endpoint.bytes()));
    bytes
}

/// The handshake, then the go-ahead that the node with the lower id owes, then `rest`.
fn introduced(node: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = hello(node);
    // The higher id does not say it; then it is the beginning of `rest`, and as good as anything.
    if node < u64::MAX / 2 {
        bytes.extend(b"open");
    }
    bytes.extend(rest);
    bytes
}

/// The same numbers in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        KeyId(self.0).mix() % sides
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.roll(256) as u8).collect()
    }
}

/// Bytes of memory this process has in use.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// What the other tests of this process may use in the meantime, and much less than what is announced here.
const GROWTH_MAX: u64 = 1 << 30;

#[test]
fn bytes_of_any_kind_at_any_port_disturb_nobody() {
    let training = Training::start();
    let _reserved = reserve_memory();
    let before = resident();
    let mut dice = Dice(1);
    for address in training.addresses() {
        // Nothing at all, held open over everything that follows.
        let silent: Vec<TcpStream> = (0..20).map(|_| connect(&address)).collect();
        for len in [1, 4, 5, 15, 16, 64, 1000, 100_000] {
            say(&address, &dice.bytes(len));
        }
        say(&address, b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: it\r\n\r\n");
        // A handshake that stops in the middle, and handshakes with garbage behind them.
        say(&address, &hello(1)[..10]);
        for node in [1, u64::MAX] {
            say(&address, &introduced(node, &[]));
            say(&address, &introduced(node, &dice.bytes(HEADER_BYTES)));
            say(&address, &introduced(node, &dice.bytes(10_000)));
            let huge = Header { part_count: 4, part_len: [1 << 63; 4], ..Header::new(Kind::Push) };
            say(&address, &introduced(node, &huge.encode()));
            let huge = Header { part_count: 1, part_len: [1 << 63, 0, 0, 0], ..Header::new(Kind::Control) };
            say(&address, &introduced(node, &huge.encode()));
            // Allowed, but nothing comes.
            let promised = Header { part_count: 4, part_len: [0, 0, 0, 500 << 20], ..Header::new(Kind::Push) };
            say(&address, &introduced(node, &promised.encode()));
        }
        drop(silent);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    training.end();
}

#[test]
fn connections_that_come_and_go_disturb_nobody() {
    let training = Training::start();
    for address in training.addresses() {
        for _ in 0..200 {
            drop(connect(&address));
        }
    }
    training.end();
}

/// Every kind of request with every kind of content, well-formed or nearly so.
fn request(dice: &mut Dice, sequence: u64) -> Message {
    let kinds = [
        Kind::Init,
        Kind::Push,
        Kind::Pull,
        Kind::PushPull,
        Kind::Describe,
        Kind::SetUpdater,
        Kind::Leave,
        Kind::Reply,
    ];
    let kind = kinds[dice.roll(kinds.len() as u64) as usize];
    let keys = [Key::from("w").id(), Key::from("over").id(), KeyId(7), KeyId(u64::MAX)];
    let bytes = [0, 4, 16, 64, 1 << 40, u64::MAX];
    let entries: Vec<Entry> = (0..dice.roll(5))
        .map(|_| {
            let (key, bytes) = (keys[dice.roll(4) as usize], bytes[dice.roll(6) as usize]);
            let mut entry = Entry::new(key, dice.roll(8) as u32, DType::F32, bytes);
            entry.dtype = if dice.roll(4) == 0 { dice.roll(256) as u8 } else { entry.dtype };
            entry
        })
        .collect();
    let meta = KeyMeta {
        key: Key::from(7),
        dtype: DType::F32,
        shape: vec![bytes[dice.roll(6) as usize]; dice.roll(40) as usize],
        consistency: Consistency::Async,
    };
    let part = match dice.roll(4) {
        0 => encode_part(&vec![meta]),
        1 => encode_part(&(vec![Key::from("w"), Key::from(7)], true)),
        2 => encode_part(&UpdaterSpec { name: "sgd".to_owned(), settings: "{".to_owned() }),
        _ => Ok(Buffer::copy_of(&dice.bytes(50)).share()),
    };
    let len = [0, 4, 16, 64, 100, 100_000][dice.roll(6) as usize];
    Message::new(kind)
        .with_part(0, entries_part(&entries))
        .with_part(1, part.unwrap())
        .with_part(3, Buffer::copy_of(&dice.bytes(len)).share())
        .with_header(|header| {
            header.sequence = if dice.roll(8) == 0 { dice.roll(u64::MAX) } else { sequence };
            header.behind = dice.roll(1 << 32) as u32;
            header.deadline_ms = dice.roll(1 << 32) as u32;
            header.epoch = dice.roll(10) as u32;
            header.status = dice.roll(3) as u16;
        })
}

/// What nodes and schedulers say, from one who is neither. Not `Leave`, `PeerLost` and the like of somebody else: a
/// node speaks for itself only.
fn control(dice: &mut Dice, members: &[NodeId]) -> Message {
    let node = members[dice.roll(members.len() as u64) as usize];
    let timeout = Duration::from_secs(dice.roll(u64::MAX));
    let (number, attempt) = (dice.roll(3), dice.roll(3));
    let endpoint = Endpoint::from("tcp://127.0.0.1:9");
    let control = match dice.roll(9) {
        0 => Control::Join(JoinRequest { role: Role::Worker, rank: Some(Rank(0)), endpoint }),
        1 => Control::Join(JoinRequest { role: Role::Scheduler, rank: None, endpoint }),
        2 => Control::Heartbeat(NodeStats { keys: u64::MAX, ..NodeStats::default() }),
        3 => Control::BarrierEnter { number, attempt, timeout },
        4 => Control::BarrierRelease { number },
        5 => Control::PeerLost { node, reason: "so the stranger says".to_owned() },
        6 => Control::Leave,
        7 => Control::Shutdown { failed: Some("so the stranger says".to_owned()) },
        _ => Control::StatusRequest,
    };
    control.to_message().unwrap()
}

#[test]
fn a_stranger_that_speaks_the_protocol_is_refused_request_by_request() {
    const MESSAGES: u64 = 3000;
    let training = Training::start();
    let _reserved = reserve_memory();
    let before = resident();
    let members: Vec<NodeId> = training.cluster.status().nodes.iter().map(|node| node.node).collect();
    let settings = &training.cluster.settings;
    let scheduler = Endpoint(format!("tcp://127.0.0.1:{}", settings.scheduler_port.unwrap()));
    let targets: Vec<Endpoint> = training.servers().into_iter().chain([scheduler]).collect();
    // Lower and higher than every other identity.
    let strangers: Vec<_> = [1, u64::MAX]
        .into_iter()
        .map(|id| {
            let (targets, members) = (targets.clone(), members.clone());
            start(move || {
                block_on(async {
                    let config = TcpConfig::new("kv", NodeId(id), Role::Worker);
                    let (van, mut inbox) = TcpVan::bind(config).await.unwrap();
                    let mut dice = Dice(id);
                    for target in &targets {
                        let node = van.connect(target).await.unwrap();
                        let mut events = Vec::new();
                        for sequence in 1..=MESSAGES {
                            let message = if dice.roll(3) == 0 {
                                control(&mut dice, &members)
                            } else {
                                request(&mut dice, sequence)
                            };
                            tokio::select! {
                                sent = van.send(node, message) => assert!(
                                    matches!(sent, Ok(()) | Err(VanError::UnknownPeer(_) | VanError::LinkLost { .. })),
                                    "{sent:?}"
                                ),
                                _ = inbox.recv_many(&mut events, 256) => events.clear(),
                            }
                        }
                    }
                    drop(van);
                });
            })
        })
        .collect();
    strangers.into_iter().for_each(Task::join);
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    training.end();
}
