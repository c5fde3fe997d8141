//! `restage verify`: two checkpoints, tensor by tensor, byte by byte.

use anyhow::anyhow;
use restage_checkpoint::{Checkpoint, compare};

use crate::args::VerifyArgs;
use crate::failure::Failure;

/// Runs the command.
pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let open = |path| Checkpoint::open(path).map_err(Failure::input);
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let found = compare(&a, &b).map_err(Failure::input)?;
    if found.equal() {
        println!("equal: {} tensors, {} bytes", found.compared_tensors, found.compared_bytes);
        return Ok(());
    }
    print!("{found}");
    Err(Failure::Verification(anyhow!("{} and {} differ", args.a.display(), args.b.display())))
}
