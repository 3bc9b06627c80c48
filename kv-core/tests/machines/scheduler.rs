//! The scheduler alone.

use super::*;

fn scheduler(now: Instant) -> Scheduler {
    let job = JobConfig { worker_loss: WorkerLoss::Continue, ..JobConfig::default() };
    let linger = Duration::from_secs(60);
    Scheduler::new(SchedulerConfig { workers: 2, servers: 1, job, start_timeout: TIMEOUT, linger }, now)
}

fn tell(scheduler: &mut Scheduler, now: Instant, from: NodeId, control: &Control) -> Vec<Control> {
    let mut out = Vec::new();
    scheduler.handle(now, from, control.to_message().expect("it is short"), &mut out);
    controls(&out)
}

fn join(scheduler: &mut Scheduler, now: Instant, node: NodeId, role: Role) -> Vec<Control> {
    let endpoint = Endpoint(format!("{node}"));
    tell(scheduler, now, node, &Control::Join(JoinRequest { role, rank: None, endpoint }))
}

#[test]
fn nobody_passes_a_barrier_or_takes_a_place_by_leaving_before_the_start() {
    let now = Instant::now();
    let mut scheduler = scheduler(now);
    join(&mut scheduler, now, WORKERS[0], Role::Worker);
    let enter = Control::BarrierEnter { number: 1, attempt: 1, timeout: TIMEOUT };
    let answers = tell(&mut scheduler, now, WORKERS[0], &enter);
    let refused = Control::BarrierFailed { number: 1, attempt: 1, rejection: Rejection::NotAMember };
    assert_eq!(answers, [refused], "alone, it would be released at once");
    tell(&mut scheduler, now, WORKERS[0], &Control::Leave);
    join(&mut scheduler, now, SERVER, Role::Server);
    let answers = join(&mut scheduler, now, WORKERS[1], Role::Worker);
    assert!(matches!(&answers[..], [Control::Waiting(waiting)] if waiting.workers == (1, 2)), "{answers:?}");
}

#[test]
fn every_change_of_the_roster_has_its_epoch_also_after_the_end() {
    let now = Instant::now();
    let mut scheduler = scheduler(now);
    join(&mut scheduler, now, WORKERS[0], Role::Worker);
    join(&mut scheduler, now, WORKERS[1], Role::Worker);
    join(&mut scheduler, now, SERVER, Role::Server);
    tell(&mut scheduler, now, SERVER, &Control::Heartbeat(NodeStats { epoch: Epoch(1), ..NodeStats::default() }));
    let mut out = Vec::new();
    let reason = VanError::Closed;
    scheduler.handle_link(now, LinkEvent::Down { node: SERVER, reason }, &mut out);
    let mut seen: Vec<Roster> = Vec::new();
    for node in WORKERS {
        tell(&mut scheduler, now, node, &Control::Leave);
        // A late question of one that has left.
        for control in tell(&mut scheduler, now, node, &Control::Heartbeat(NodeStats::default())) {
            if let Control::Roster(roster) = control {
                assert!(!seen.iter().any(|other| other.epoch == roster.epoch && *other != roster), "{roster:?}");
                seen.push(roster);
            }
        }
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_scheduler_that_was_stopped_does_not_blame_the_others() {
    let start = Instant::now();
    let mut scheduler = scheduler(start);
    let job = JobConfig::default();
    for (node, role) in [(WORKERS[0], Role::Worker), (WORKERS[1], Role::Worker), (SERVER, Role::Server)] {
        join(&mut scheduler, start, node, role);
    }
    let mut out = Vec::new();
    // Its own clock comes before the heartbeats that have arrived meanwhile.
    let mut now = start + job.dead_after * 2;
    scheduler.handle_timeout(now, &mut out);
    assert_eq!(controls(&out), []);
    // Running again, it does notice who is silent.
    while controls(&out).is_empty() {
        now = scheduler.deadline().expect("it looks at its clock").max(now);
        assert!(now < start + job.dead_after * 4);
        for node in [WORKERS[0], WORKERS[1]] {
            let stats = NodeStats { epoch: Epoch(u32::MAX), ..NodeStats::default() };
            tell(&mut scheduler, now, node, &Control::Heartbeat(stats));
        }
        scheduler.handle_timeout(now, &mut out);
    }
    assert!(controls(&out).iter().any(|control| matches!(control, Control::Shutdown { failed: Some(_) })));
}
