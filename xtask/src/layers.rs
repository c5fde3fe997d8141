//! The arrows between crates: which may use which, and whether they keep to it.
//!
//! Dev-dependencies are free, since tests and benches may stand above what they test. Everything else counts,
//! build-dependencies and those of one platform too.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Package -> the packages of this workspace that it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("restage-nest", &[]),
    ("restage-geometry", &["restage-nest"]),
    ("restage-plan", &["restage-geometry", "restage-nest"]),
    ("restage-transport", &["restage-nest"]),
    ("restage-object", &["restage-nest", "restage-transport"]),
    ("restage-wire", &["restage-nest", "restage-geometry", "restage-plan"]),
    ("restage-checkpoint", &["restage-geometry", "restage-plan"]),
    ("restage-model", &["restage-geometry"]),
    ("restage-refit", &["restage-geometry", "restage-nest", "restage-plan", "restage-transport"]),
    ("restage-worker", &[]),
    ("restage-tokenizer", &[]),
    (
        "restage-engine",
        &[
            "restage-geometry",
            "restage-plan",
            "restage-transport",
            "restage-checkpoint",
            "restage-model",
            "restage-refit",
            "restage-tokenizer",
            "restage-worker",
        ],
    ),
    ("restage", LIBRARIES),
    ("xtask", LIBRARIES),
];

/// What the binaries may use: every library.
const LIBRARIES: &[&str] = &[
    "restage-nest",
    "restage-geometry",
    "restage-plan",
    "restage-transport",
    "restage-object",
    "restage-wire",
    "restage-checkpoint",
    "restage-model",
    "restage-refit",
    "restage-worker",
    "restage-tokenizer",
    "restage-engine",
];

/// The part of `cargo metadata --no-deps` that matters here: the packages of the workspace.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    /// The package's own name, also where it is renamed.
    name: String,
    /// `dev`, `build`, or nothing for an ordinary one.
    kind: Option<String>,
}

/// Checks the workspace in a folder, and counts its arrows.
///
/// # Errors
///
/// Every arrow that is not allowed, and every package that the table lacks; or cargo fails.
pub fn run(root: &Path) -> Result<usize> {
    let output = crate::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot start cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata printed")?;
    check(&metadata)
}

fn check(metadata: &Metadata) -> Result<usize> {
    let members: BTreeSet<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    let is_ours = |name: &str| members.contains(name) || name.starts_with("restage-");
    let mut wrong = BTreeSet::new();
    let mut arrows = BTreeSet::new();
    for package in &metadata.packages {
        let from = package.name.as_str();
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == from) else {
            wrong.insert(format!("{from} is not in the table of arrows"));
            continue;
        };
        for dependency in &package.dependencies {
            let to = dependency.name.as_str();
            if dependency.kind.as_deref() == Some("dev") || !is_ours(to) {
                continue;
            }
            arrows.insert((from, to));
            if !allowed.contains(&to) {
                wrong.insert(format!("{from} -> {to} is not allowed"));
            }
        }
    }
    if !wrong.is_empty() {
        let wrong: Vec<String> = wrong.into_iter().collect();
        bail!("the arrows between crates (xtask/src/layers.rs):\n  {}", wrong.join("\n  "));
    }
    Ok(arrows.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(packages: &str) -> Result<usize, String> {
        let metadata = serde_json::from_str(&format!(r#"{{"packages":[{packages}]}}"#)).unwrap();
        check(&metadata).map_err(|e| e.to_string())
    }

    fn package(name: &str, dependency: &str, kind: &str) -> String {
        format!(r#"{{"name":"{name}","dependencies":[{{"name":"{dependency}","kind":{kind}}}]}}"#)
    }

    #[test]
    fn this_workspace_keeps_to_its_arrows() {
        let arrows = run(&crate::workspace().unwrap()).unwrap();
        assert!(arrows >= ALLOWED.len(), "{arrows}");
    }

    #[test]
    fn a_forbidden_arrow_is_named() {
        let error = checked(&package("restage-geometry", "restage-plan", "null")).unwrap_err();
        assert!(error.contains("restage-geometry -> restage-plan"), "{error}");
        let error = checked(&package("restage-transport", "restage-geometry", "\"build\"")).unwrap_err();
        assert!(error.contains("restage-transport -> restage-geometry"), "{error}");
        // Nothing may use the binaries, whose names do not start like those of the libraries.
        let both = package("restage-refit", "restage", "null") + "," + &package("restage", "clap", "null");
        assert!(checked(&both).unwrap_err().contains("restage-refit -> restage"));
    }

    #[test]
    fn dev_dependencies_and_strangers_are_free() {
        assert_eq!(checked(&package("restage-geometry", "restage-wire", "\"dev\"")), Ok(0));
        assert_eq!(checked(&package("restage-nest", "thiserror", "null")), Ok(0));
        assert_eq!(checked(&package("restage-geometry", "restage-nest", "null")), Ok(1));
    }

    #[test]
    fn a_crate_that_the_table_lacks_is_named() {
        let error = checked(&package("restage-stranger", "serde", "null")).unwrap_err();
        assert!(error.contains("restage-stranger"), "{error}");
    }
}
