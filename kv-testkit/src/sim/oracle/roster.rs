//! Epochs only grow, a rank has one holder, and nobody comes back from the dead.

use std::collections::BTreeMap;

use kv_core::cluster::{NodeId, Rank, Role, Roster, Standing};

use crate::sim::plan::Plan;

/// Looks at every roster sent, in order.
///
/// # Errors
/// The first that contradicts itself or an earlier one.
pub fn check(plan: &Plan, rosters: &[Roster]) -> Result<(), String> {
    let mut epoch = 0;
    let mut holders: BTreeMap<(Role, Rank), NodeId> = BTreeMap::new();
    let mut gone: BTreeMap<NodeId, &Standing> = BTreeMap::new();
    let mut before: Option<&Roster> = None;
    for roster in rosters {
        if roster.epoch.0 < epoch {
            return Err(format!("a roster of epoch {} after one of epoch {epoch}", roster.epoch.0));
        }
        if let Some(before) = before
            && before.epoch == roster.epoch
            && before != roster
        {
            return Err(format!("two different rosters of epoch {epoch}"));
        }
        epoch = roster.epoch.0;
        before = Some(roster);
        if roster.members.len() != plan.workers + plan.servers {
            return Err(format!("a roster of {} members", roster.members.len()));
        }
        for member in &roster.members {
            let holder = *holders.entry((member.name.role, member.name.rank)).or_insert(member.node);
            if holder != member.node {
                return Err(format!("two nodes are {} {}", member.name.role, member.name.rank));
            }
            match gone.get(&member.node) {
                Some(standing) if **standing != member.standing => {
                    return Err(format!("{} was {standing:?} and is {:?}", member.name, member.standing));
                }
                _ if member.standing != Standing::Live => {
                    gone.insert(member.node, &member.standing);
                }
                _ => {}
            }
        }
    }
    Ok(())
}
