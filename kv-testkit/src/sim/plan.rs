//! One seed, one job: sizes, keys, consistency, workload, weather and faults.

use std::time::Duration;

use fastrand::Rng;
use kv_core::cluster::{JobConfig, NodeId, Rank, WorkerLoss};
use kv_core::machine::Resend;
use kv_core::{Consistency, DType, Key};

use super::network::{Partition, Weather};
use super::script::{Load, Script, pick, scripts};
use super::values::KeySpec;

/// What kind of trouble a run is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Profile {
    /// A perfect network: reliable, in order. Nodes are slow or stopped for a while at most.
    Perfect,
    /// Nothing is lost or doubled, but messages overtake each other.
    Reorder,
    /// Messages are lost, doubled, late and out of order; partitions heal; nodes stop for a while.
    Lossy,
    /// A worker dies.
    WorkerCrash,
    /// A server dies.
    ServerCrash,
    /// The scheduler dies.
    SchedulerCrash,
    /// Partitions, stops and cut links that outlast the deadlines.
    Outage,
    /// A perfect network on which strangers and a mad worker send nonsense.
    Garbage,
    /// Forged messages in everybody's name: nothing may panic, nothing else is promised.
    Hostile,
}

impl Profile {
    /// All of them, the common ones more than once: a seed's profile is its remainder.
    const DEALT: [Self; 16] = [
        Self::Perfect,
        Self::Lossy,
        Self::WorkerCrash,
        Self::Reorder,
        Self::Lossy,
        Self::Garbage,
        Self::Outage,
        Self::WorkerCrash,
        Self::Lossy,
        Self::Perfect,
        Self::ServerCrash,
        Self::Lossy,
        Self::SchedulerCrash,
        Self::Reorder,
        Self::Hostile,
        Self::Outage,
    ];

    /// The profile of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self::DEALT[(seed % Self::DEALT.len() as u64) as usize]
    }

    /// Whether every call must succeed and every value is known exactly.
    #[must_use]
    pub fn is_exact(self) -> bool {
        matches!(self, Self::Perfect | Self::Reorder | Self::Lossy | Self::Garbage)
    }
}

/// Something that happens to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node is gone. `silent`: its peers are not told (the machine lost power); else their links break.
    Crash {
        /// Which node.
        node: usize,
        /// Whether its peers are not told.
        silent: bool,
    },
    /// The node does nothing for a while, then goes on (SIGSTOP, SIGCONT).
    Stall {
        /// Which node.
        node: usize,
        /// How long.
        length: Duration,
    },
    /// A link between two living nodes breaks; both are told.
    Cut {
        /// One end.
        a: usize,
        /// The other.
        b: usize,
    },
    /// So many messages of nonsense.
    Garbage {
        /// How many.
        count: usize,
    },
}

/// A job. Nodes are numbered: the scheduler is 0, then the servers, then the workers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it comes from.
    pub seed: u64,
    /// The kind of trouble.
    pub profile: Profile,
    /// Number of workers.
    pub workers: usize,
    /// Number of servers.
    pub servers: usize,
    /// The keys.
    pub keys: Vec<KeySpec>,
    /// The job's shared settings.
    pub job: JobConfig,
    /// Consistency of all keys.
    pub consistency: Consistency,
    /// Whether the servers accumulate.
    pub accumulate: bool,
    /// Deadline of every wait.
    pub timeout: Duration,
    /// Whether requests are repeated.
    pub resend: Resend,
    /// Whether servers keep replies.
    pub keep_replies: bool,
    /// How long the scheduler stays after the end.
    pub linger: Duration,
    /// The network.
    pub weather: Weather,
    /// What happens when, in order.
    pub faults: Vec<(Duration, Fault)>,
    /// What the workers do, by rank.
    pub scripts: Vec<Script>,
    /// When each node starts.
    pub starts: Vec<Duration>,
    /// The rank each node asks for.
    pub wanted: Vec<Option<Rank>>,
    /// The identity of each node.
    pub ids: Vec<NodeId>,
    /// The rank of the worker that sends nonsense and does nothing else but leave.
    pub mad: Option<usize>,
}

impl Plan {
    /// The job of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rng = &mut rng;
        let profile = Profile::of(seed);
        let mad = profile == Profile::Garbage;
        let fat = matches!(profile, Profile::Perfect | Profile::Reorder | Profile::Lossy) && rng.u8(..) < 2;
        let servers = if fat { 1 } else { rng.usize(1..=4) };
        let workers = if fat { 2 } else { rng.usize(1 + usize::from(mad)..=5) };
        let nodes = 1 + servers + workers;
        let consistency = *pick(
            rng,
            &[
                Consistency::Async,
                Consistency::Sync { deterministic: false },
                Consistency::Sync { deterministic: true },
                Consistency::Sync { deterministic: true },
            ],
        );
        let wild = consistency == Consistency::Sync { deterministic: true } && rng.bool();
        let keys = if fat { vec![fat_key(wild)] } else { keys(rng, wild) };
        let accumulate = rng.u8(..) < 180;
        let pushes = if fat { 2 } else { rng.usize(2..=24) };
        let mut scripts = scripts(rng, Load { workers, keys: keys.len(), accumulate, pushes });
        let mad = mad.then_some(workers - 1);
        if let Some(mad) = mad {
            scripts[mad].steps = vec![super::script::Step::Leave];
            scripts[mad].think = Duration::from_secs(2);
        }
        let job = JobConfig {
            chunk_bytes: if fat { 64 } else { *pick(rng, &[64, 64, 128, 1024]) },
            worker_loss: if rng.bool() { WorkerLoss::Fail } else { WorkerLoss::Continue },
            heartbeat_every: Duration::from_millis(rng.u64(200..=400)),
            dead_after: Duration::from_secs(8),
        };
        let lossy = profile == Profile::Lossy || (!profile.is_exact() && rng.bool());
        let weather = if lossy { storm(rng, fat) } else { calm(rng, profile == Profile::Reorder) };
        let mut plan = Self {
            seed,
            profile,
            workers,
            servers,
            keys,
            job,
            consistency,
            accumulate,
            timeout: Duration::from_secs(match profile {
                Profile::Outage | Profile::Hostile => rng.u64(2..=12),
                _ => 120,
            }),
            resend: if lossy { Resend::After(Duration::from_millis(rng.u64(50..=300))) } else { Resend::Never },
            keep_replies: lossy,
            linger: if lossy { Duration::from_secs(20) } else { Duration::ZERO },
            weather,
            faults: Vec::new(),
            scripts,
            starts: (0..nodes).map(|_| Duration::from_millis(rng.u64(0..500))).collect(),
            wanted: wanted(rng, servers, workers, mad.is_some()),
            ids: (0..nodes).map(|node| NodeId((u64::from(rng.u32(..)) << 16) | node as u64)).collect(),
            mad,
        };
        plan.plan_faults(rng);
        plan
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        1 + self.servers + self.workers
    }

    /// The node numbers of the workers.
    #[must_use]
    pub fn worker_nodes(&self) -> std::ops::Range<usize> {
        1 + self.servers..self.nodes()
    }

    /// When the last fault is over.
    #[must_use]
    pub fn faults_end(&self) -> Duration {
        let faults = self.faults.iter().map(|(at, fault)| match fault {
            Fault::Stall { length, .. } => *at + *length,
            // What is silent is noticed only after a while.
            Fault::Crash { .. } => *at + self.job.dead_after * 2,
            _ => *at,
        });
        let partitions = self.weather.partitions.iter().map(|partition| partition.until);
        faults.chain(partitions).max().unwrap_or_default()
    }

    /// How long any call may take once the faults are over.
    #[must_use]
    pub fn patience(&self) -> Duration {
        match self.profile {
            Profile::Perfect | Profile::Reorder | Profile::Garbage => Duration::from_secs(30),
            Profile::Lossy => Duration::from_secs(110),
            // A call may wait behind others that wait for their deadlines.
            _ => self.timeout * 4 + Duration::from_secs(60),
        }
    }

    fn plan_faults(&mut self, rng: &mut Rng) {
        let nodes = self.nodes();
        // Together far below what makes a node count as dead.
        let short = self.job.dead_after.as_millis() as u64 / 5;
        let (stall, part) = match self.profile {
            Profile::Perfect | Profile::Reorder | Profile::Lossy => (Some(short), Some(short)),
            Profile::Outage => (Some(25_000), Some(25_000)),
            _ => (None, None),
        };
        if let Some(longest) = stall
            && rng.u8(..) < 150
        {
            let length = Duration::from_millis(rng.u64(100..=longest));
            self.faults.push((moment(rng), Fault::Stall { node: rng.usize(0..nodes), length }));
        }
        if let Some(longest) = part
            && rng.u8(..) < 150
        {
            let (from, sides) = (moment(rng), rng.u64(..));
            let until = from + Duration::from_millis(rng.u64(100..=longest));
            self.weather.partitions.push(Partition { from, until, sides });
        }
        let servers = 1..=self.servers;
        let workers = self.worker_nodes();
        let silent = rng.bool();
        match self.profile {
            Profile::WorkerCrash => {
                let node = rng.usize(workers.clone());
                self.faults.push((moment(rng), Fault::Crash { node, silent }));
                if rng.u8(..) < 60 {
                    let node = rng.usize(workers);
                    self.faults.push((moment(rng), Fault::Crash { node, silent: !silent }));
                }
            }
            Profile::ServerCrash => {
                self.faults.push((moment(rng), Fault::Crash { node: rng.usize(servers), silent }));
            }
            Profile::SchedulerCrash => self.faults.push((moment(rng), Fault::Crash { node: 0, silent })),
            Profile::Outage if rng.u8(..) < 128 => {
                let a = rng.usize(workers);
                self.faults.push((moment(rng), Fault::Cut { a, b: rng.usize(0..=self.servers) }));
            }
            Profile::Garbage | Profile::Hostile => {
                for _ in 0..rng.usize(3..12) {
                    self.faults.push((moment(rng), Fault::Garbage { count: rng.usize(1..20) }));
                }
            }
            _ => {}
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

/// A time at which most jobs are at work.
fn moment(rng: &mut Rng) -> Duration {
    let scale = *pick(rng, &[600, 1200, 2500]);
    Duration::from_micros(rng.u64(100_000..scale * 1000))
}

fn wanted(rng: &mut Rng, servers: usize, workers: usize, always: bool) -> Vec<Option<Rank>> {
    let mut wanted = vec![None];
    for count in [servers, workers] {
        let asked = if always { 256 } else { *pick(rng, &[0, 128, 256]) };
        wanted.extend((0..count).map(|rank| (u16::from(rng.u8(..)) < asked).then_some(Rank(rank as u16))));
    }
    wanted
}

fn keys(rng: &mut Rng, wild: bool) -> Vec<KeySpec> {
    (0..rng.usize(1..=6))
        .map(|number| KeySpec {
            key: if rng.bool() { Key::from(number as u64) } else { Key::from(format!("key {number}")) },
            dtype: *pick(rng, &[DType::F32, DType::F64, DType::I64]),
            len: *pick(rng, &[0, 1, 1, 2, 7, 8, 9, 16, 17, 40, 100]),
            wild,
        })
        .collect()
}

/// So many chunks that the window of unanswered requests fills and requests wait at home.
fn fat_key(wild: bool) -> KeySpec {
    KeySpec { key: Key::from("fat"), dtype: DType::F64, len: 34_000, wild }
}

fn calm(rng: &mut Rng, overtaking: bool) -> Weather {
    Weather {
        in_order: !overtaking,
        drop: 0.0,
        duplicate: 0.0,
        base_us: rng.u64(20..=3000),
        jitter_us: if overtaking { rng.u64(100..=50_000) } else { rng.u64(0..=2000) },
        late: if overtaking { 0.05 } else { 0.0 },
        partitions: Vec::new(),
        partition_loses: false,
    }
}

fn storm(rng: &mut Rng, fat: bool) -> Weather {
    // Of thousands of requests, some are lost again and again; the wait between two tries grows to seconds.
    let worst = if fat { 4 } else { 10 };
    Weather {
        in_order: false,
        drop: f64::from(rng.u32(0..=worst)) / 100.0,
        duplicate: f64::from(rng.u32(0..=20)) / 100.0,
        base_us: rng.u64(20..=5000),
        jitter_us: rng.u64(0..=20_000),
        late: f64::from(rng.u32(0..=10)) / 100.0,
        partitions: Vec::new(),
        partition_loses: true,
    }
}
