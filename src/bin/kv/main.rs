//! The command line of the kv parameter server.

mod launch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A parameter server: push gradients, pull weights, the optimizer runs beside the values.
#[derive(Parser)]
#[command(name = "kv", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Launch(launch::Args),
}

fn main() -> ExitCode {
    launch::die_with_launcher();
    match Cli::parse().command {
        Command::Launch(args) => launch::main(args),
    }
}
