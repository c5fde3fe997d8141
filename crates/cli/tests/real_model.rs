//! The real checkpoint: SmolLM2-135M-Instruct in bf16, as `cargo xtask real-model` makes it.
//!
//! Skipped, and said so, where it has not been made.

mod support;

use support::real::model;
use support::{fails, ok, text};
use tempfile::tempdir;

#[test]
fn it_goes_to_three_ranks_and_one_and_back() {
    let Some(model) = model() else { return };
    for tp in ["3", "1"] {
        let dir = tempdir().unwrap();
        let (out, back) = (dir.path().join("out"), dir.path().join("back"));
        ok(&["reshard", text(&model), "--tp", tp, "--out", text(&out)]);
        ok(&["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
        let said = ok(&["verify", text(&model), text(&back)]);
        assert_eq!(said.trim(), "equal: 272 tensors, 269030016 bytes");
    }
}

#[test]
fn two_and_nine_ranks_are_refused_by_name_and_number() {
    let Some(model) = model() else { return };
    let dir = tempdir().unwrap();
    let out = dir.path().join("out");
    let two = fails(3, &["reshard", text(&model), "--tp", "2", "--out", text(&out)]);
    assert!(two.contains("num_attention_heads 9") && two.contains("(remainder 1)"), "{two}");
    let nine = fails(3, &["reshard", text(&model), "--tp", "9", "--out", text(&out)]);
    assert!(nine.contains("intermediate_size 1536") && nine.contains("(remainder 6)"), "{nine}");
    assert!(!out.exists());
}
