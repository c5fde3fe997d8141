//! Chores of the restage workspace: `cargo xtask <command>`.
//!
//! Exit codes: 0 done, 1 a chore failed, 2 wrong usage, 5 a fixture differs.

mod layers;
mod real_model;
mod s3_server;
mod verify;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "\
usage: cargo xtask <command>

  verify [--no-tests] [NAME]  check the arrows between crates, reconstruct every fixture (or those with NAME in
                              their name) through every transport, then run the tests of the workspace
  layers                      check the arrows between crates
  real-model                  make the real checkpoint that large checks read, and print its folder
  s3-server                   make the Python environment that tests start a server of S3 from, and print its folder
";

/// Cargo features that are off unless asked for, and tested all the same.
const OPTIONAL: &str = "restage/object";

/// Exit code when a chore failed.
const FAILED: u8 = 1;
/// Exit code for wrong arguments.
const WRONG_USAGE: u8 = 2;
/// Exit code when a fixture differs.
const DIFFERS: u8 = 5;

#[derive(Debug, PartialEq, Eq)]
enum Chore {
    Help,
    Verify { tests: bool, filter: Option<String> },
    Layers,
    RealModel,
    S3Server,
}

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(chore) = parse(&arguments) else {
        eprint!("{USAGE}");
        return ExitCode::from(WRONG_USAGE);
    };
    match run(chore) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn parse(arguments: &[&str]) -> Option<Chore> {
    match arguments {
        ["-h" | "--help"] => Some(Chore::Help),
        ["layers"] => Some(Chore::Layers),
        ["s3-server"] => Some(Chore::S3Server),
        ["real-model"] => Some(Chore::RealModel),
        ["verify", rest @ ..] => {
            let (mut tests, mut filter) = (true, None);
            for &argument in rest {
                match argument {
                    "--no-tests" if tests => tests = false,
                    name if !name.starts_with('-') && filter.is_none() => filter = Some(name.to_owned()),
                    _ => return None,
                }
            }
            Some(Chore::Verify { tests, filter })
        }
        _ => None,
    }
}

fn run(chore: Chore) -> Result<u8> {
    match chore {
        Chore::Help => write!(io::stdout(), "{USAGE}")?,
        Chore::Layers => check_layers(&workspace()?)?,
        Chore::RealModel => writeln!(io::stdout(), "{}", real_model::run(None)?.display())?,
        Chore::S3Server => writeln!(io::stdout(), "{}", s3_server::run()?.display())?,
        Chore::Verify { tests, filter } => return verify(&workspace()?, tests, filter.as_deref()),
    }
    Ok(0)
}

fn check_layers(root: &Path) -> Result<()> {
    let arrows = layers::run(root)?;
    writeln!(io::stdout(), "layers: {arrows} arrows between crates, all of them allowed")?;
    Ok(())
}

fn verify(root: &Path, tests: bool, filter: Option<&str>) -> Result<u8> {
    check_layers(root)?;
    let media = verify::Media::all();
    let rows = verify::run(&root.join("fixtures"), filter, &media)?;
    if rows.is_empty() {
        eprintln!("no fixture has {:?} in its name", filter.unwrap_or_default());
        return Ok(WRONG_USAGE);
    }
    let mut out = io::stdout().lock();
    write!(out, "{}", verify::Table(&rows))?;
    media.left_out.iter().try_for_each(|medium| writeln!(out, "left out: {medium}"))?;
    // What the tests print goes straight to the terminal and must come after the table.
    out.flush()?;
    drop(out);
    if rows.iter().any(|row| !row.failures.is_empty()) {
        return Ok(DIFFERS);
    }
    if tests {
        let status = cargo()
            .args(["test", "--workspace", "--features", OPTIONAL])
            .current_dir(root)
            .status()
            .context("cannot start cargo test --workspace")?;
        ensure!(status.success(), "cargo test --workspace --features {OPTIONAL} failed ({status})");
    }
    Ok(0)
}

/// The cargo that runs this chore.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The folder of the workspace: the one above this package's.
fn workspace() -> Result<PathBuf> {
    // Cargo sets it anew for each run; the one that was compiled in serves where the binary is started by hand.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    match Path::new(&package).parent() {
        Some(root) if root.join("fixtures").is_dir() => Ok(root.to_owned()),
        _ => bail!("{} is not in the workspace: there is no fixtures folder beside it", package.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_taken_in_any_order_and_strange_ones_refused() {
        let verify =
            |tests, filter: Option<&str>| Some(Chore::Verify { tests, filter: filter.map(str::to_owned) });
        assert_eq!(parse(&["verify"]), verify(true, None));
        assert_eq!(parse(&["verify", "qkv", "--no-tests"]), verify(false, Some("qkv")));
        assert_eq!(parse(&["verify", "--no-tests", "qkv"]), verify(false, Some("qkv")));
        assert_eq!(parse(&["layers"]), Some(Chore::Layers));
        for wrong in [
            &[][..],
            &["verfy"],
            &["layers", "all"],
            &["real-model", "--force"],
            &["verify", "--tests"],
            &["verify", "a", "b"],
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
