//! File names: of the layouts that are read and written, and of the files that go along with weights.

/// The index of a checkpoint of several files (Hugging Face).
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// The only weights file of a checkpoint of one file (Hugging Face).
pub const SINGLE_FILE: &str = "model.safetensors";

/// What restage writes about a checkpoint that it made.
pub const REPORT_FILE: &str = "restage.json";

/// The ending of GGUF files.
pub(crate) const GGUF_END: &str = ".gguf";

/// The ending of weights files.
pub(crate) const WEIGHTS_END: &str = ".safetensors";

/// The name of a part of one rank's weights in vLLM's sharded state
/// (`ShardedStateLoader.DEFAULT_PATTERN`); both count from 0.
///
/// ```
/// assert_eq!(restage_checkpoint::names::rank_file(1, 0), "model-rank-1-part-0.safetensors");
/// ```
pub fn rank_file(rank: u32, part: u32) -> String {
    format!("model-rank-{rank}-part-{part}{WEIGHTS_END}")
}

/// The name of a file of an indexed checkpoint, as Hugging Face counts them: from 1.
///
/// ```
/// assert_eq!(restage_checkpoint::names::indexed_file(2, 30), "model-00002-of-00030.safetensors");
/// ```
pub fn indexed_file(number: u32, of: u32) -> String {
    format!("model-{number:05}-of-{of:05}{WEIGHTS_END}")
}

/// What a file name says about sharded state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankName {
    /// A part of a rank.
    Part { rank: u32, part: u32 },
    /// It starts like one and is none that a writer makes, such as `model-rank-00-part-0.safetensors`.
    Malformed,
    /// Something else.
    Other,
}

/// Reads a file name as a part of a rank.
pub(crate) fn rank_name(name: &str) -> RankName {
    let Some(numbers) = name.strip_prefix("model-rank-").and_then(|n| n.strip_suffix(WEIGHTS_END)) else {
        return RankName::Other;
    };
    let parsed = numbers.split_once("-part-").and_then(|(r, p)| Some((r.parse().ok()?, p.parse().ok()?)));
    match parsed {
        // Written back, so that "+1" and "01" are not taken for 1.
        Some((rank, part)) if rank_file(rank, part) == name => RankName::Part { rank, part },
        _ => RankName::Malformed,
    }
}

/// True for `model-00001-of-00002.safetensors` and its like.
fn is_indexed_file(name: &str) -> bool {
    let digits = |s: &str| s.len() >= 5 && s.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix("model-")
        .and_then(|n| n.strip_suffix(WEIGHTS_END))
        .and_then(|n| n.split_once("-of-"))
        .is_some_and(|(number, of)| digits(number) && digits(of))
}

/// True for a file that belongs beside weights wherever they go: configuration, tokenizer, vocabulary, chat
/// template, and the Python files of models that bring their own code. Weights, indices and hidden files are
/// none.
pub fn is_companion(name: &str) -> bool {
    const NAMES: &[&str] =
        &["config.json", "configuration.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"];
    const STARTS: &[&str] = &["tokenizer", "vocab", "chat_template"];
    const ENDS: &[&str] = &["_config.json", ".model", ".tiktoken", ".jinja", ".py"];
    const NEVER: &[&str] = &[WEIGHTS_END, ".index.json", ".bin", ".pt", ".pth", GGUF_END];
    !name.starts_with('.')
        && !NEVER.iter().any(|end| name.ends_with(end))
        && (NAMES.contains(&name)
            || STARTS.iter().any(|start| name.starts_with(start))
            || ENDS.iter().any(|end| name.ends_with(end)))
}

/// True for the weights files and the index of the layouts that restage writes, and for its report.
pub fn is_weights(name: &str) -> bool {
    [SINGLE_FILE, INDEX_FILE, REPORT_FILE].contains(&name)
        || is_indexed_file(name)
        || matches!(rank_name(name), RankName::Part { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_names_parse_back_and_only_in_their_one_spelling() {
        for (rank, part) in [(0, 0), (1, 12), (u32::MAX, 3)] {
            assert_eq!(rank_name(&rank_file(rank, part)), RankName::Part { rank, part });
        }
        for numbers in
            ["00-part-0", "0-part-00", "+1-part-0", "-1-part-0", "0", "0-part-", "4294967296-part-0"]
        {
            let name = format!("model-rank-{numbers}.safetensors");
            assert_eq!(rank_name(&name), RankName::Malformed, "{name}");
        }
        assert_eq!(rank_name("model.safetensors"), RankName::Other);
    }

    #[test]
    fn companions_are_neither_weights_nor_hidden() {
        for name in [
            "config.json",
            "generation_config.json",
            "preprocessor_config.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
            "spiece.model",
            "vocab.json",
            "merges.txt",
            "special_tokens_map.json",
            "chat_template.jinja",
            "modeling_custom.py",
        ] {
            assert!(is_companion(name) && !is_weights(name), "{name}");
        }
        for name in [SINGLE_FILE, INDEX_FILE, REPORT_FILE, &rank_file(0, 0), &indexed_file(1, 2)] {
            assert!(is_weights(name) && !is_companion(name), "{name}");
        }
        for name in [".config.json", "README.md", "pytorch_model.bin.index.json", "tokenizer.safetensors"] {
            assert!(!is_weights(name) && !is_companion(name), "{name}");
        }
    }
}
