//! Runs the checks, in one process or as one rank of several.

use std::sync::Arc;

use futures_util::future::join_all;
use kv_core::van::Van;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::node::{Failure, Node, Step};
use super::{CHECKS, Check, Harness, Outcome, Report, Signals, Stage};

/// Runs every check in this process: a task per rank on the current runtime, fresh nodes for every check.
pub async fn run(harness: impl Harness) -> Report {
    run_some(harness, |_| true).await
}

/// As [`run`], for the checks whose name is `wanted` only; the others do not appear in the report.
pub async fn run_some(harness: impl Harness, wanted: impl Fn(&str) -> bool) -> Report {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let mut report = Report::default();
    for check in CHECKS.iter().filter(|check| wanted(check.name)) {
        report.add(check.name, run_fresh(check, &harness).await);
    }
    report
}

/// Runs the checks as one of several processes, each of which calls this with its own `rank` and the same `signals`.
///
/// The harness gives one van per process ([`Harness::node`] is called once) and knows all endpoints
/// ([`Harness::endpoints`]). Checks that would destroy that van are skipped, except the one of closing, which runs
/// last; the van is closed afterwards. After a failed check the rest is skipped, because the ranks are no longer in
/// step. All ranks report the same, except for that last check.
pub async fn run_as_rank(harness: impl Harness, rank: usize, signals: Signals) -> Report {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let mut report = Report::default();
    let mut node = Node::new(rank, harness.node(rank).await, Arc::clone(&harness), signals);
    node.endpoints = harness.endpoints();
    let mut broken = timeout(harness.check_deadline(), link(&mut node)).await.map_or_else(
        |_| Some("the ranks did not find each other in time".to_owned()),
        |linked| linked.err().map(|failure| failure.0),
    );

    // The check that closes the vans comes last; the report keeps the order of the numbers.
    let (last, rest): (Vec<_>, Vec<_>) = (0..CHECKS.len()).partition(|&at| CHECKS[at].stage == Stage::Closing);
    let mut outcomes = vec![Outcome::Skipped(String::new()); CHECKS.len()];
    for at in rest.into_iter().chain(last) {
        let check = &CHECKS[at];
        node.check = at as u32 + 1;
        outcomes[at] = match (&broken, (check.lacks)(&node.van().capability())) {
            (Some(reason), _) if reason.is_empty() => Outcome::Skipped("an earlier check failed".to_owned()),
            (Some(reason), _) => Outcome::Failed(reason.clone()),
            (None, Some(capability)) => Outcome::Skipped(format!("needs the capability {capability}")),
            (None, None) if matches!(check.stage, Stage::Mortal | Stage::Unlinked) => {
                Outcome::Skipped("needs nodes of its own".to_owned())
            }
            (None, None) => run_in_step(check, &mut node).await,
        };
        if matches!(outcomes[at], Outcome::Failed(_)) {
            broken = Some(String::new());
        }
    }
    for (check, outcome) in CHECKS.iter().zip(outcomes) {
        report.add(check.name, outcome);
    }
    report
}

async fn link(node: &mut Node) -> Result<(), Failure> {
    for endpoint in node.endpoints.clone() {
        let peer = node.van().connect(&endpoint).await?;
        node.peers.push(peer);
    }
    node.barrier().await
}

async fn run_in_step(check: &Check, node: &mut Node) -> Outcome {
    let deadline = node.harness.check_deadline();
    node.downs_expected = check.stage == Stage::Closing;
    let own = match timeout(deadline, (check.run)(node)).await {
        Ok(own) => own,
        Err(_) => Err(Failure(format!("no end within {deadline:?}; rank {} was {}", node.rank, node.step.text()))),
    };
    let all = if check.stage == Stage::Closing {
        own
    } else {
        timeout(deadline, node.verdict(own)).await.unwrap_or_else(|_| Err(Failure("no verdict in time".to_owned())))
    };
    outcome_of(all)
}

async fn run_fresh(check: &Check, harness: &Arc<dyn Harness>) -> Outcome {
    let signals = Signals::in_process();
    let mut nodes = Vec::new();
    for rank in 0..harness.nodes() {
        nodes.push(Node::new(rank, harness.node(rank).await, Arc::clone(harness), signals.clone()));
    }
    if let Some(capability) = (check.lacks)(&nodes[0].van().capability()) {
        return Outcome::Skipped(format!("needs the capability {capability}"));
    }

    let steps: Vec<_> = nodes.iter().map(|node| node.step.clone()).collect();
    let deadline = harness.check_deadline();
    match timeout(deadline, drive(check, nodes)).await {
        Ok(result) => outcome_of(result),
        Err(_) => Outcome::Failed(format!("no end within {deadline:?}: {}", where_they_are(&steps))),
    }
}

async fn drive(check: &Check, mut nodes: Vec<Node>) -> Result<(), Failure> {
    let peers: Vec<_> = nodes.iter().map(|node| node.van().node()).collect();
    let endpoints: Vec<_> = nodes.iter().map(|node| node.van().endpoint().clone()).collect();
    for node in &mut nodes {
        (node.peers, node.endpoints, node.check) = (peers.clone(), endpoints.clone(), 1);
        node.downs_expected = matches!(check.stage, Stage::Closing | Stage::Mortal);
        node.step.set("linking");
        if check.stage != Stage::Unlinked {
            for rank in node.others() {
                let peer = node.van().connect(&endpoints[rank]).await?;
                super::node::ensure!(peer == peers[rank], "{} answered as {peer}", endpoints[rank]);
            }
        }
    }

    // The nodes come back, so that no van goes away while another rank is still at work.
    let mut tasks = JoinSet::new();
    let run = check.run;
    for mut node in nodes {
        tasks.spawn(async move {
            let result = run(&mut node).await;
            node.step.set("done");
            result.map(|()| node).map_err(|failure| failure.0)
        });
    }
    let mut nodes = Vec::new();
    while let Some(done) = tasks.join_next().await {
        // The first failure ends the check: dropping the set aborts the other ranks.
        nodes.push(done?.map_err(Failure)?);
    }

    let vans: Vec<Arc<dyn Van>> =
        nodes.iter().filter(|node| node.is_alive()).map(|node| Arc::clone(node.van())).collect();
    let closed = join_all(vans.iter().map(|van| van.close())).await;
    for (van, closed) in vans.iter().zip(closed) {
        closed.map_err(|error| Failure(format!("closing {} at the end: {error}", van.endpoint())))?;
    }
    Ok(())
}

fn where_they_are(steps: &[Step]) -> String {
    let steps: Vec<_> = steps.iter().enumerate().map(|(rank, step)| format!("rank {rank} {}", step.text())).collect();
    steps.join(", ")
}

fn outcome_of(result: Result<(), Failure>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed,
        Err(failure) => Outcome::Failed(failure.0),
    }
}
