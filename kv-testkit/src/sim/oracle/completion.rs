//! Every call ends exactly once, in time, and only with an error that the faults explain.

use kv_core::Error;
use kv_core::cluster::{Role, WorkerLoss};

use crate::sim::history::{Call, What};
use crate::sim::plan::{Fault, Plan, Profile};
use crate::sim::world::Run;

/// Looks at every call.
///
/// # Errors
/// The first call that is wrong.
pub fn check(plan: &Plan, run: &Run) -> Result<(), String> {
    let dead: Vec<usize> =
        run.ends.iter().filter(|end| end.crashed && end.role == Role::Worker).filter_map(|end| end.rank).collect();
    for (number, call) in run.history.calls.iter().enumerate() {
        let name =
            || format!("call {number} of rank {} ({:?}, submitted at {:?})", call.rank, call.what, call.submitted.at);
        if call.completions > 1 {
            return Err(format!("{} was completed {} times", name(), call.completions));
        }
        if plan.profile == Profile::Hostile {
            continue;
        }
        let Some((done, result)) = &call.done else {
            if dead.contains(&call.rank) {
                continue;
            }
            return Err(format!("{} was never completed; the run ended at {:?}", name(), run.ended_at));
        };
        if let Err(error) = result
            && !explained(plan, call, error)
        {
            return Err(format!("{} failed for no reason: {error}", name()));
        }
        if call.what == What::AfterLeave && result.is_ok() {
            return Err(format!("{} succeeded although its worker has left", name()));
        }
        let from = call.submitted.at.max(plan.faults_end());
        if plan.mad != Some(call.rank) && done.at > from + plan.patience() {
            return Err(format!(
                "{} took until {:?}, the faults were over at {:?}",
                name(),
                done.at,
                plan.faults_end()
            ));
        }
    }
    Ok(())
}

fn explained(plan: &Plan, call: &Call, error: &Error) -> bool {
    if call.what == What::AfterLeave || plan.mad == Some(call.rank) {
        return true;
    }
    let crashes = |role: Role| {
        plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Crash { node, .. } if role_of(plan, *node) == role))
    };
    match error {
        // The loss of a worker has one consequence only, and only for those who need it. A worker that cannot reach its
        // servers or its scheduler any more stops, and is lost to the others.
        Error::WorkerLost { name, .. } => match plan.profile {
            Profile::WorkerCrash => plan.job.worker_loss == WorkerLoss::Fail || name.rank.0 == 0,
            profile => !profile.is_exact(),
        },
        // Servers stop when they miss their scheduler, and a worker may see that first.
        Error::ServerLost { .. } | Error::JobFailed { .. } => {
            crashes(Role::Server) || crashes(Role::Scheduler) || plan.profile == Profile::Outage
        }
        Error::SchedulerLost { .. } => {
            crashes(Role::Scheduler)
                || plan.profile == Profile::Outage
                // The last words of a scheduler that ends a failed job may be lost.
                || (plan.profile == Profile::ServerCrash && plan.weather.partition_loses)
        }
        Error::Timeout { .. } => plan.profile == Profile::Outage,
        // Declared lost, then back.
        Error::Refused { .. } => plan.profile == Profile::Outage,
        // Whoever should have initialised the key is lost, or could not.
        Error::NotInitialised { .. } => !plan.profile.is_exact(),
        _ => false,
    }
}

fn role_of(plan: &Plan, node: usize) -> Role {
    match node {
        0 => Role::Scheduler,
        _ if node <= plan.servers => Role::Server,
        _ => Role::Worker,
    }
}
