//! `kv status`: what a running scheduler knows.

use std::io::Write;
use std::process::ExitCode;

use kv::config::Role;
use kv::{Error, node};
use kv_core::cluster::Standing;
use kv_core::wire::{NodeStatus, StatusReport};
use serde_json::json;

use crate::fail;
use crate::node_args::{JobArgs, NodeArgs};

/// Ask a running scheduler who is there: rank, address, last heartbeat, keys, bytes, rounds.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

pub(crate) fn main(args: Args) -> ExitCode {
    match ask(args.node) {
        Ok(report) => {
            let text = if args.json { as_json(&report) } else { as_table(&report) };
            // A reader that has seen enough is no failure.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

fn ask(args: NodeArgs) -> Result<StatusReport, Error> {
    let config = args.resolve(JobArgs::default(), Role::Observer)?;
    node::runtime()?.block_on(node::status(&config))
}

fn standing(node: &NodeStatus) -> String {
    match &node.standing {
        Standing::Live => "live".to_owned(),
        Standing::Left => "left".to_owned(),
        Standing::Lost(reason) => format!("lost: {reason}"),
    }
}

fn as_table(report: &StatusReport) -> String {
    let mut text = format!("{}, roster {}\n", report.waiting, report.epoch.0);
    text += &format!(
        "{:<10} {:>4}  {:<28} {:>10} {:>10} {:>14} {:>10} {:>10} {:>10}  {}\n",
        "role", "rank", "address", "heard", "keys", "bytes", "rounds", "pushes", "pulls", "state"
    );
    for node in &report.nodes {
        let stats = &node.stats;
        text += &format!(
            "{:<10} {:>4}  {:<28} {:>9.1}s {:>10} {:>14} {:>10} {:>10} {:>10}  {}\n",
            node.name.role.to_string(),
            node.name.rank.0,
            node.name.endpoint.0,
            node.last_heard.as_secs_f64(),
            stats.keys,
            stats.value_bytes,
            stats.rounds,
            stats.pushes,
            stats.pulls,
            standing(node)
        );
    }
    text
}

fn as_json(report: &StatusReport) -> String {
    let nodes = report.nodes.iter().map(|node| {
        json!({
            "role": node.name.role.to_string(),
            "rank": node.name.rank.0,
            "address": node.name.endpoint.0,
            "node": node.node.to_string(),
            "state": standing(node),
            "last_heard_s": node.last_heard.as_secs_f64(),
            "keys": node.stats.keys,
            "bytes": node.stats.value_bytes,
            "rounds": node.stats.rounds,
            "pushes": node.stats.pushes,
            "pulls": node.stats.pulls,
            "refused": node.stats.refused,
        })
    });
    let (workers, servers) = (report.waiting.workers, report.waiting.servers);
    let report = json!({
        "epoch": report.epoch.0,
        "workers": {"joined": workers.0, "expected": workers.1},
        "servers": {"joined": servers.0, "expected": servers.1},
        "nodes": nodes.collect::<Vec<_>>(),
    });
    format!("{report}\n")
}
