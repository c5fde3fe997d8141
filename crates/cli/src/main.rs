//! `restage`: moves model weights from the layout they are stored in to the layout they are served in.
//!
//! Exit codes: 0 done, 2 wrong usage, 3 input refused, 4 transfer failed, 5 verification failed.

mod args;
mod diff;
mod expect;
mod failure;
mod fleet;
mod inspect;
mod job;
mod origin;
mod page;
mod plan;
mod plan_files;
mod progress;
mod publish;
mod remote;
mod reshard;
mod saved;
mod source;
mod stages;
mod unshard;
mod verify;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Args, Command};
use saved::Given;

fn main() -> ExitCode {
    let matches = Args::command().get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    let done = match args.command {
        Command::Inspect(args) => inspect::run(&args),
        Command::Plan(args) => match (&args.capture, &args.sources) {
            (Some(capture), Some(sources)) => plan_files::run(&args, capture, sources),
            _ if args.fleet.wanted() => fleet::run(&args),
            _ => plan::run(&args),
        },
        Command::Reshard(args) => match args.from {
            args::From::HuggingFace => reshard::run(&args, &Given::new(&matches)),
            args::From::ShardedState => unshard::run(&args),
        },
        Command::Publish(args) => publish::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Worker(args) => worker::run(&args),
        Command::Stages(args) => stages::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("restage: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
