//! `restage stages`: which blocks each stage of a pipeline owns.

use std::io::{self, BufWriter, ErrorKind, Write};

use anyhow::anyhow;
use clap::ValueEnum;
use restage_worker::{Split, Stage};

use crate::failure::Failure;

/// Arguments of `stages`.
#[derive(Debug, clap::Args)]
pub struct StagesArgs {
    /// Blocks of the whole model.
    #[arg(long, value_name = "L")]
    pub layers: u64,
    /// Number of stages, at least 2.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub num_stages: i64,
    /// How blocks are shared out.
    #[arg(long, value_name = "HOW", default_value = "floor")]
    pub split: SplitArg,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// How blocks are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitArg {
    /// As many each as go round; the last stage has the rest.
    Floor,
    /// A difference of one block at most, longer stages in the middle.
    Balanced,
}

impl From<SplitArg> for Split {
    fn from(split: SplitArg) -> Split {
        match split {
            SplitArg::Floor => Split::Floor,
            SplitArg::Balanced => Split::Balanced,
        }
    }
}

/// Prints the stages.
pub fn run(args: &StagesArgs) -> Result<(), Failure> {
    let usage = |e: &dyn std::error::Error| Failure::Usage(anyhow!("{e}"));
    // What is wrong for one stage is wrong for all: nothing is printed before that is known.
    let first = Stage::new(0, args.num_stages).map_err(|e| usage(&e))?;
    let split = Split::from(args.split);
    split.range(first, args.layers).map_err(|e| usage(&e))?;
    match print(args, split) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::transfer(e)),
        _ => Ok(()),
    }
}

fn print(args: &StagesArgs, split: Split) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        write!(out, "{{\"stages\":[")?;
    }
    for index in 0..args.num_stages {
        let stage = Stage::new(index, args.num_stages).map_err(io::Error::other)?;
        let range = split.range(stage, args.layers).map_err(io::Error::other)?;
        let (role, start, end) = (stage.role().name(), range.start, range.end);
        if args.json {
            let comma = if index > 0 { "," } else { "" };
            write!(out, "{comma}{{\"stage\":{index},\"role\":\"{role}\",\"layers\":[{start},{end}]}}")?;
        } else {
            writeln!(out, "stage {index}  {role:<6}  blocks {start}..{end}  ({})", end - start)?;
        }
    }
    if args.json {
        writeln!(out, "]}}")?;
    }
    out.flush()
}
