//! What the workers of a simulated job do.
//!
//! All ranks follow one common sequence of pushes and barriers, so that no round and no barrier waits for a worker that
//! waits for another round; each adds pulls, fuses pushes with pulls, waits or does not wait, at its own speed. Some
//! stop early and leave: then the others must go on without them.

use std::time::Duration;

use fastrand::Rng;

/// One step of a script. Keys are given by their number in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Initialise these keys.
    Init(Vec<usize>),
    /// Have the servers accumulate.
    SetUpdater,
    /// Push the next gradient of each.
    Push(Vec<usize>),
    /// Pull each.
    Pull(Vec<usize>),
    /// Both at once.
    PushPull(Vec<usize>),
    /// The barrier.
    Barrier,
    /// Wait for every open call.
    Drain,
    /// Leave the job.
    Leave,
}

/// One worker's program.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it does, in order.
    pub steps: Vec<Step>,
    /// Calls it has open at most.
    pub window: usize,
    /// Longest pause between two steps.
    pub think: Duration,
}

/// The size of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Workers.
    pub workers: usize,
    /// Keys.
    pub keys: usize,
    /// Whether the servers accumulate (else a round assigns).
    pub accumulate: bool,
    /// Pushes of the common sequence.
    pub pushes: usize,
}

/// The scripts by rank.
#[must_use]
pub fn scripts(rng: &mut Rng, load: Load) -> Vec<Script> {
    let all: Vec<usize> = (0..load.keys).collect();
    // A barrier behind the inits allows workers that init nothing, and an updater set by one of them.
    let fenced = rng.bool();
    let mut common = Vec::new();
    for _ in 0..load.pushes {
        common.push(Step::Push(some_keys(rng, load.keys)));
        if rng.u8(..) < 25 {
            common.push(Step::Barrier);
        }
    }
    // Somebody stays to the end, passes the last barrier and looks at the result.
    let stays = rng.usize(0..load.workers);
    (0..load.workers)
        .map(|rank| {
            let mut steps = Vec::new();
            if rank == 0 || !fenced || rng.bool() {
                steps.extend(inits(rng, &all));
            }
            if load.accumulate && (rank == 0 || !fenced) {
                steps.push(Step::SetUpdater);
            }
            if fenced {
                steps.push(Step::Barrier);
            }
            let early = rank != stays && rng.u8(..) < 90;
            let length = if early { rng.usize(0..=common.len()) } else { common.len() };
            for step in &common[..length] {
                steps.extend(variation(rng, step, load.keys));
            }
            if !early {
                steps.push(Step::Barrier);
                steps.push(Step::Pull(all.clone()));
            }
            if rng.bool() {
                steps.push(Step::Drain);
            }
            steps.push(Step::Leave);
            if rng.u8(..) < 20 {
                // To be refused: a worker that has left is out.
                steps.push(Step::Pull(vec![0]));
            }
            let window = *pick(rng, &[1, 1, 2, 4, 16, 64]);
            let think = Duration::from_millis(*pick(rng, &[0, 1, 5, 20, 60]));
            Script { steps, window, think }
        })
        .collect()
}

/// All keys in one call, or in several.
fn inits(rng: &mut Rng, all: &[usize]) -> Vec<Step> {
    if rng.bool() {
        return vec![Step::Init(all.to_vec())];
    }
    let mut shuffled = all.to_vec();
    rng.shuffle(&mut shuffled);
    shuffled.chunks(rng.usize(1..=all.len())).map(|keys| Step::Init(keys.to_vec())).collect()
}

/// What one worker makes of a step of the common sequence.
fn variation(rng: &mut Rng, step: &Step, keys: usize) -> Vec<Step> {
    let mut steps = match step {
        // A key twice in one push is two rounds; fused with a pull it is not used that way.
        Step::Push(pushed) if rng.u8(..) < 80 && no_repeats(pushed) => vec![Step::PushPull(pushed.clone())],
        step => vec![step.clone()],
    };
    if rng.u8(..) < 100 {
        steps.push(Step::Pull(some_keys(rng, keys)));
    }
    if rng.u8(..) < 30 {
        steps.push(Step::Drain);
    }
    steps
}

fn some_keys(rng: &mut Rng, keys: usize) -> Vec<usize> {
    let count = if rng.bool() { 1 } else { rng.usize(1..=keys) };
    let mut chosen: Vec<usize> = (0..keys).collect();
    rng.shuffle(&mut chosen);
    chosen.truncate(count);
    if rng.u8(..) < 10 {
        chosen.push(chosen[0]);
    }
    chosen
}

fn no_repeats(keys: &[usize]) -> bool {
    keys.iter().enumerate().all(|(index, key)| !keys[..index].contains(key))
}

/// One of several.
///
/// # Panics
/// When there are none.
pub fn pick<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.usize(0..choices.len())]
}
