//! Small vocabularies, of either kind and from either file.

use restage_tokenizer::{GgufVocab, Stream, Tokenizer, TokenizerError};

/// All bytes in GPT-2's writing, then some merges, then two control tokens.
fn byte_level() -> (Vec<String>, Vec<i32>, Vec<&'static str>) {
    let printed = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut moved = 0x100;
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|b| {
            let code = if printed(b) {
                u32::from(b)
            } else {
                moved += 1;
                moved - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect();
    let merges = vec!["h e", "l l", "he ll", "hell o", "\u{120} hello", "1 2"];
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    tokens.extend(["<|start|>", "<|end|>"].map(str::to_owned));
    let types = (0..tokens.len()).map(|i| if i < 262 { 1 } else { 3 }).collect();
    (tokens, types, merges)
}

const START: u32 = 262;
const END: u32 = 263;

fn with(change: impl Fn(&mut GgufVocab<'_>)) -> Result<Tokenizer, TokenizerError> {
    let (tokens, types, merges) = byte_level();
    let mut vocab = GgufVocab {
        model: "gpt2",
        pre: Some("smollm"),
        tokens: tokens.iter().map(String::as_str).collect(),
        types: Some(&types),
        merges: Some(merges),
        bos: Some(START),
        eos: Some(END),
        ..GgufVocab::default()
    };
    change(&mut vocab);
    Tokenizer::from_gguf(&vocab)
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, &mut ids).unwrap();
    ids
}

#[test]
fn words_are_merged_and_digits_are_not() {
    let t = with(|_| ()).unwrap();
    assert_eq!(ids(&t, "hello hello"), [259, 260]);
    // `1 2` is a merge, and smollm keeps digits apart; gpt-2 does not.
    assert_eq!(ids(&t, "12"), [49, 50]);
    assert_eq!(ids(&with(|v| v.pre = Some("gpt-2")).unwrap(), "12"), [261]);
    assert_eq!(t.decode(&ids(&t, "h\u{e9} 12\n\0")).unwrap(), "h\u{e9} 12\n\0");
    assert_eq!((t.vocab_size(), t.bos(), t.eos()), (264, Some(START), &[END][..]));
}

#[test]
fn what_spells_a_control_token_is_text_and_the_beginning_comes_once() {
    let t = with(|v| v.add_bos = Some(true)).unwrap();
    let found = ids(&t, "<|start|>hello");
    assert_eq!(found[0], START);
    assert!(found[1..].iter().all(|&id| id != START), "{found:?}");
    assert_eq!(t.decode(&found).unwrap(), "<|start|>hello");
    // Of a template that has it already it is neither text nor there twice.
    let templated = |text: &str| {
        let mut ids = Vec::new();
        t.encode_with_control(text, &mut ids).unwrap();
        ids
    };
    assert_eq!(templated("<|start|>hello<|end|>"), [START, 259, END]);
    assert_eq!(templated("hello<|end|><|end|>"), [START, 259, END, END]);
    assert_eq!(templated("<|end|>"), [START, END]);
    assert_eq!(templated(""), [START]);
}

#[test]
fn what_is_missing_or_does_not_fit_is_named() {
    let error = |change: &dyn Fn(&mut GgufVocab<'_>)| with(change).unwrap_err().to_string();
    assert_eq!(error(&|v| v.pre = None), "tokenizer.ggml.pre is missing");
    assert_eq!(error(&|v| v.merges = None), "tokenizer.ggml.merges is missing");
    assert!(
        error(&|v| v.pre = Some("tekken")).starts_with("tokenizer.ggml.pre: \"tekken\" is not known; known")
    );
    assert_eq!(
        error(&|v| v.model = "bert"),
        "tokenizer.ggml.model: \"bert\" is not known; known are gpt2 and llama"
    );
    assert_eq!(error(&|v| v.types = Some(&[1])), "tokenizer.ggml.token_type: expected 264 entries, found 1");
    assert_eq!(error(&|v| v.eos = Some(264)), "token 264 of a vocabulary of 264 does not exist");
    assert_eq!(
        error(&|v| v.merges = Some(vec!["ab"])),
        "tokenizer.ggml.merges: \"ab\" is not two tokens with a space between"
    );
    assert!(error(&|v| v.merges = Some(vec!["h zz"])).starts_with("cannot be tokenized: merges and tokens"));
    assert_eq!(error(&|v| v.tokens.clear()), "tokenizer.ggml.tokens is missing");
    let bos = error(&|v| (v.add_bos, v.bos) = (Some(true), None));
    assert_eq!(bos, "tokenizer.ggml.bos_token_id is missing");
}

#[test]
fn a_split_character_is_held_until_it_is_whole() {
    let t = with(|_| ()).unwrap();
    let text = "h\u{e9}\u{1f600}";
    let mut stream = Stream::new();
    let parts: Vec<String> = ids(&t, text).into_iter().map(|id| stream.push(&t, id).unwrap()).collect();
    assert_eq!(parts, ["h", "", "\u{e9}", "", "", "", "\u{1f600}"]);
    assert_eq!(stream.flush(), "");
    // Half a character, then a letter: it can make no character any more.
    let half = ids(&t, "\u{e9}")[0];
    assert_eq!(stream.push(&t, half).unwrap(), "");
    assert_eq!(stream.push(&t, ids(&t, "h")[0]).unwrap(), "\u{fffd}h");
    stream.push(&t, half).unwrap();
    assert_eq!(stream.flush(), "\u{fffd}");
    assert!(stream.push(&t, 264).is_err());
}

/// SentencePiece: control tokens, bytes, letters, and some put together.
fn sentence_piece() -> (Vec<String>, Vec<i32>, Vec<f32>) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
    types.resize(tokens.len(), 6);
    let words = ["\u{2581}", "a", "b", "c", "ab", "bc", "\u{2581}ab", "abc"];
    tokens.extend(words.map(str::to_owned));
    types.resize(tokens.len(), 1);
    let mut scores = vec![0.0; tokens.len()];
    // The order of merging: bc before ab, so that abc becomes a + bc.
    for (word, score) in [("ab", -2.0), ("bc", -1.0), ("\u{2581}ab", -3.0), ("abc", -9.0)] {
        let at = tokens.iter().position(|t| t == word).unwrap();
        scores[at] = score;
    }
    (tokens, types, scores)
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let (tokens, types, scores) = sentence_piece();
    let vocab = GgufVocab {
        model: "llama",
        tokens: tokens.iter().map(String::as_str).collect(),
        types: Some(&types),
        scores: Some(&scores),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..GgufVocab::default()
    };
    let t = Tokenizer::from_gguf(&vocab).unwrap();
    let words =
        |text: &str| -> Vec<&str> { ids(&t, text).iter().map(|&id| vocab.tokens[id as usize]).collect() };
    assert_eq!(words("ab"), ["<s>", "\u{2581}ab"]);
    assert_eq!(words("abc"), ["<s>", "\u{2581}", "abc"]);
    assert_eq!(words("a\u{e9}"), ["<s>", "\u{2581}", "a", "<0xC3>", "<0xA9>"]);
    assert_eq!(t.decode(&ids(&t, "ab \u{e9}")).unwrap(), " ab \u{e9}");
    let short =
        GgufVocab { tokens: vec!["<unk>", "a"], types: None, scores: Some(&[0.0, 0.0]), ..vocab.clone() };
    let error = Tokenizer::from_gguf(&GgufVocab { bos: None, eos: None, ..short }).unwrap_err();
    assert!(error.to_string().contains("<0x00>"), "{error}");
}

#[test]
fn a_tokenizer_json_gives_the_same_as_its_vocabulary() {
    let (tokens, _, merges) = byte_level();
    let vocab: serde_json::Map<_, _> =
        tokens[..262].iter().enumerate().map(|(id, t)| (t.clone(), id.into())).collect();
    let special = |id: usize| {
        serde_json::json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special(262), special(263)],
        "normalizer": null, "post_processor": null, "decoder": byte_level,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, byte_level]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": merges},
    });
    let mut from_json = Tokenizer::from_json(json.to_string().as_bytes(), Some(START)).unwrap();
    from_json.add_eos([END, END]);
    let from_gguf = with(|_| ()).unwrap();
    for text in ["hello hello", "12 h\u{e9}\n", "<|start|>hello", ""] {
        assert_eq!(ids(&from_json, text), ids(&from_gguf, text), "{text:?}");
    }
    assert_eq!((from_json.vocab_size(), from_json.eos()), (264, &[END][..]));
    assert_eq!(from_json.decode(&[START, 259, END]).unwrap(), "hello");
    assert!(Tokenizer::from_json(b"{}", None).is_err());
}
