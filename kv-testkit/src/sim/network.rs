//! The simulated network: what becomes of a message, and the queue of everything that is going to happen.

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use fastrand::Rng;
use kv_core::Endpoint;
use kv_core::cluster::NodeId;
use kv_core::machine::LinkEvent;
use kv_core::wire::Message;

use super::plan::Fault;
use super::stats::Stats;
use super::values::mix;

/// How a network behaves. Rates are means: every link has its own, between nothing and twice as much.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Messages of one node to another keep their order.
    pub in_order: bool,
    /// Share of messages lost.
    pub drop: f64,
    /// Share of messages doubled.
    pub duplicate: f64,
    /// Shortest delay of a link, at most.
    pub base_us: u64,
    /// Further delay, different for each message.
    pub jitter_us: u64,
    /// Share of messages that are very late (up to half a second).
    pub late: f64,
    /// When parts of the cluster cannot reach each other.
    pub partitions: Vec<Partition>,
    /// Whether what is sent over a partition is lost, or only late.
    pub partition_loses: bool,
}

/// For a while, nodes on different sides do not reach each other.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Beginning.
    pub from: Duration,
    /// End.
    pub until: Duration,
    /// Bit `n` is the side of node `n`.
    pub sides: u64,
}

/// Something that is going to happen to a node.
#[derive(Clone, Debug)]
pub enum Happening {
    /// It starts.
    Start,
    /// A message arrives.
    Message {
        /// The node that sent it; none if it does not belong to the cluster.
        sender: Option<usize>,
        /// The identity that the van reports.
        from: NodeId,
        /// The message.
        message: Message,
    },
    /// A connection it asked for reaches its target.
    Dial(Endpoint),
    /// News of a link.
    Link(LinkEvent),
    /// Its application takes the next step.
    Step,
    /// A stop is over.
    Resume,
    /// A fault; the node is of no importance.
    Fault(Fault),
}

/// A [`Happening`] with its time and place.
#[derive(Debug)]
pub struct Event {
    /// When.
    pub at: Duration,
    order: u64,
    /// To which node.
    pub node: usize,
    /// What.
    pub what: Happening,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap's greatest is what happens next.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// The queue and the links.
pub struct Network {
    seed: u64,
    nodes: usize,
    weather: Weather,
    rng: Rng,
    queue: BinaryHeap<Event>,
    next_order: u64,
    /// For each pair: when the last message sent arrives.
    last: Vec<Duration>,
    links: BTreeSet<(usize, usize)>,
    /// Nodes that crashed, each with a bit for every peer: whether what was under way to it is lost.
    lost_with: Vec<Option<u64>>,
}

impl Network {
    /// A network between so many nodes.
    #[must_use]
    pub fn new(seed: u64, nodes: usize, weather: Weather) -> Self {
        Self {
            seed,
            nodes,
            weather,
            rng: Rng::with_seed(mix(seed)),
            queue: BinaryHeap::new(),
            next_order: 0,
            last: vec![Duration::ZERO; nodes * nodes],
            links: BTreeSet::new(),
            lost_with: vec![None; nodes],
        }
    }

    /// The network's randomness.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Duration> {
        self.queue.peek().map(|event| event.at)
    }

    /// The next thing that happens.
    pub fn pop(&mut self) -> Option<Event> {
        self.queue.pop()
    }

    /// Makes something happen.
    pub fn schedule(&mut self, at: Duration, node: usize, what: Happening) {
        self.next_order += 1;
        self.queue.push(Event { at, order: self.next_order, node, what });
    }

    /// Whether two nodes are linked.
    #[must_use]
    pub fn is_linked(&self, a: usize, b: usize) -> bool {
        self.links.contains(&(a, b))
    }

    /// Links two nodes.
    pub fn link(&mut self, a: usize, b: usize) {
        self.links.extend([(a, b), (b, a)]);
    }

    /// Takes the link of two nodes away.
    pub fn unlink(&mut self, a: usize, b: usize) {
        self.links.remove(&(a, b));
        self.links.remove(&(b, a));
    }

    /// The nodes linked to `node`.
    #[must_use]
    pub fn peers(&self, node: usize) -> Vec<usize> {
        self.links.range((node, 0)..=(node, usize::MAX)).map(|(_, peer)| *peer).collect()
    }

    /// Part of what a node has sent dies with it.
    pub fn crash(&mut self, node: usize) {
        self.lost_with[node] = Some(self.rng.u64(..));
    }

    /// Whether a message under way died with its sender.
    #[must_use]
    pub fn died_with(&self, sender: usize, to: usize) -> bool {
        self.lost_with[sender].is_some_and(|lost| lost >> to & 1 == 1)
    }

    /// Sends a message: it arrives, perhaps, some time, or twice.
    pub fn send(&mut self, now: Duration, (from, id): (usize, NodeId), to: usize, message: Message, stats: &mut Stats) {
        if !self.is_linked(from, to) {
            stats.unlinked += 1;
            return;
        }
        let mut now = now;
        if let Some(until) = self.parted(now, from, to) {
            if self.weather.partition_loses {
                stats.parted += 1;
                return;
            }
            stats.held_back += 1;
            now = until;
        }
        if self.happens(self.weather.drop, from, to) {
            stats.dropped += 1;
            return;
        }
        let copies = if self.happens(self.weather.duplicate, from, to) { 2 } else { 1 };
        stats.duplicated += copies - 1;
        for _ in 0..copies {
            let arrival = self.arrival(now, from, to, stats);
            let message = message.clone();
            self.schedule(arrival, to, Happening::Message { sender: Some(from), from: id, message });
        }
    }

    /// Tells `to` of its link to `from`, after everything that is under way on it.
    pub fn send_last(&mut self, now: Duration, from: usize, to: usize, event: LinkEvent) {
        let at = self.last[from * self.nodes + to].max(now) + Duration::from_micros(1);
        self.schedule(at, to, Happening::Link(event));
    }

    /// When a connection attempt reaches its target: behind any partition.
    pub fn dial(&mut self, now: Duration, by: usize, to: usize, endpoint: Endpoint) {
        let at = self.parted(now, by, to).unwrap_or(now) + Duration::from_micros(self.rng.u64(10..5000));
        self.schedule(at, by, Happening::Dial(endpoint));
    }

    fn arrival(&mut self, now: Duration, from: usize, to: usize, stats: &mut Stats) -> Duration {
        let mut delay = self.of_link(from, to, 1) * self.weather.base_us as f64;
        delay += self.rng.f64() * self.weather.jitter_us as f64;
        if self.happens(self.weather.late, from, to) {
            delay += self.rng.f64() * 500_000.0;
        }
        let mut at = now + Duration::from_micros(delay as u64);
        let last = &mut self.last[from * self.nodes + to];
        if at < *last {
            if self.weather.in_order {
                at = *last;
            } else {
                stats.overtaken += 1;
            }
        }
        *last = at.max(*last);
        at
    }

    fn parted(&self, now: Duration, a: usize, b: usize) -> Option<Duration> {
        let apart = |p: &&Partition| p.from <= now && now < p.until && (p.sides >> a ^ p.sides >> b) & 1 == 1;
        self.weather.partitions.iter().filter(apart).map(|partition| partition.until).max()
    }

    fn happens(&mut self, rate: f64, from: usize, to: usize) -> bool {
        rate > 0.0 && self.rng.f64() < 2.0 * rate * self.of_link(from, to, 2)
    }

    /// A constant of the link, from 0 to 1.
    fn of_link(&self, from: usize, to: usize, what: u64) -> f64 {
        (mix(self.seed ^ mix((from * self.nodes + to) as u64 + what * 1000)) % 1024) as f64 / 1023.0
    }
}
