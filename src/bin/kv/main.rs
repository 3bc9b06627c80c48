//! The command line of the kv parameter server.

mod launch;
mod node_args;
mod roles;
mod status;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A parameter server: push gradients, pull weights, the optimizer runs beside the values.
#[derive(Parser)]
#[command(name = "kv", version = version())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::Args),
    Launch(launch::Args),
    Scheduler(roles::SchedulerArgs),
    Server(roles::ServerArgs),
    Status(status::Args),
}

fn main() -> ExitCode {
    launch::die_with_launcher();
    match Cli::parse().command {
        Command::Train(args) => train::main(args),
        Command::Launch(args) => launch::main(args),
        Command::Scheduler(args) => roles::scheduler(args),
        Command::Server(args) => roles::server(args),
        Command::Status(args) => status::main(args),
    }
}

/// Version and compiled-in transports.
fn version() -> String {
    format!("{} (transports: {})", env!("CARGO_PKG_VERSION"), kv::transports().join(", "))
}

/// Says what went wrong.
fn fail(error: &kv::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
