//! What is read, what is refused, and the path that a refusal names.

use restage_geometry::{Captured, Dtype, Op};
use restage_wire::{CaptureFile, MAX_FILE_BYTES, SourcesFile, WireError};
use serde_json::{Value, json};

const COPY: &str = r#"{"source": "w", "ops": [], "param": "p", "dest_offset": 0, "dest_shape": [2, 4], "dest_stride": [4, 1]}"#;

fn capture() -> Value {
    json!({
        "format": "restage-capture",
        "version": 1,
        "params": {"p": {"dtype": "BF16", "shape": [2, 4]}, "model.q w": {"dtype": "F32", "shape": []}},
        "sources": {"w": {"dtype": "BF16", "shape": [4, 4]}},
        "copies": [{
            "source": "w",
            "ops": [{"op": "narrow", "dim": 0, "start": 2, "length": 2}, {"op": "reshape", "shape": [2, 4]}],
            "param": "p", "dest_offset": 0, "dest_shape": [2, 4], "dest_stride": [4, 1]
        }],
        "fills": [{"param": "p", "dest_offset": 0, "dest_shape": [1], "dest_stride": [1], "element": "803f"}],
        "unsupported": {"bad": "mul", "worse": {"op": "to", "params": ["model.q w"]}}
    })
}

fn sources() -> Value {
    json!({
        "format": "restage-sources",
        "version": 1,
        "sources": {"w": {
            "dtype": "bf16", "shape": [4, 4], "elsize": 2,
            "shards": [
                {"offset": [0, 0], "shape": [2, 4], "session": "a", "addr": 4096},
                {"offset": [2, 0], "shape": [2, 4], "session": "b", "addr": 0,
                 "digest": format!("sha256:{}", "0f".repeat(32))}
            ]
        }}
    })
}

fn read(value: &Value) -> Result<Captured, WireError> {
    CaptureFile::parse(value.to_string().as_bytes())
}

/// The value at a JSON pointer.
fn set(value: &mut Value, pointer: &str, to: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match value.pointer_mut(parent).unwrap() {
        Value::Object(map) => drop(map.insert(key.to_owned(), to)),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = to,
        other => panic!("{other} has no keys"),
    }
}

#[test]
fn a_capture_is_read_in_full() {
    let captured = read(&capture()).unwrap();
    let find = |name: &str| captured.params.iter().position(|p| p.name == name).unwrap();
    let (p, q) = (find("p"), find("model.q w"));
    assert_eq!((captured.params[p].dtype, &captured.params[p].shape[..]), (Dtype::BF16, &[2, 4][..]));
    assert_eq!(captured.copies[0].param, p);
    assert_eq!(captured.copies[0].ops[0], Op::Narrow { dim: 0, start: 2, length: 2 });
    assert_eq!(captured.sources["w"], (Dtype::BF16, vec![4, 4]));
    assert_eq!((&captured.fills[0].element[..], captured.fills[0].after), (&[0x80, 0x3f][..], 0));
    assert_eq!((&*captured.unsupported["bad"].op, captured.unsupported["bad"].params.len()), ("mul", 0));
    assert_eq!(
        (&*captured.unsupported["worse"].op, &captured.unsupported["worse"].params[..]),
        ("to", &[q][..])
    );
}

#[test]
fn what_is_wrong_with_a_capture_is_named_with_its_path() {
    let huge = i64::MAX;
    for (pointer, to, error) in [
        (
            "/format",
            json!("restage-sources"),
            r#"format: expected "restage-capture", found "restage-sources""#,
        ),
        ("/version", json!(2), "version: version 2 is not known"),
        ("/version", json!("1"), r#"version: version "1" is not known"#),
        ("/extra", json!(1), "extra: unknown field `extra`"),
        ("/params/p/dtype", json!("BF17"), r#"params.p.dtype: unknown dtype "BF17""#),
        ("/params/p/dtype", json!(16), "params.p.dtype: invalid type: integer `16`, expected a string"),
        ("/params/p/shape", json!([2, -4]), "params.p.shape: shape [2, -4] is not valid"),
        ("/params/p/shape", json!([2, 1.5]), "params.p.shape[1]: invalid type: floating point `1.5`"),
        (
            "/params/model.q w/shape",
            json!(vec![1; 17]),
            r#"params["model.q w"].shape: 17 dimensions are more than 16"#,
        ),
        ("/params/model.q w/shape", json!([huge, 2]), r#"params["model.q w"].shape: shape"#),
        (
            "/params/model.q w/shape",
            json!([huge]),
            r#"params["model.q w"]: with this, the parameters have more"#,
        ),
        ("/params/p/strides", json!([1]), "params.p.strides: unknown field"),
        ("/sources/w/dtype", json!(""), "sources.w.dtype: unknown dtype"),
        ("/sources/w/shape", json!(vec![1; 17]), "sources.w.shape: 17 dimensions"),
        ("/copies/0/param", json!("q"), r#"copies[0].param: there is no parameter "q""#),
        ("/copies/0/note", json!("q"), "copies[0].note: unknown field `note`"),
        ("/copies/0/dest_dtype", json!("F32"), "copies[0].dest_dtype: p holds BF16, and this says F32"),
        ("/copies/0/dest_dtype", json!("F33"), "copies[0].dest_dtype: unknown dtype"),
        ("/copies/0/dest_offset", json!(-1), "copies[0].dest_offset: offset -1"),
        ("/copies/0/dest_offset", json!(1), "copies[0]: the destination (offset 1"),
        ("/copies/0/dest_offset", json!(huge), "copies[0].dest_offset: offset 9223372036854775807"),
        ("/copies/0/dest_offset", json!(9223372036854775808u64), "copies[0].dest_offset: invalid value"),
        ("/copies/0/dest_stride", json!([1]), "copies[0].dest_stride: 1 strides for 2 dimensions"),
        ("/copies/0/dest_stride", json!([huge, huge]), "copies[0].dest_offset: offset 0"),
        ("/copies/0/dest_stride", json!([i64::MIN, 0]), "copies[0].dest_offset: offset 0"),
        ("/copies/0/dest_shape", json!([-2, 4]), "copies[0].dest_shape: shape [-2, 4] is not valid"),
        ("/copies/0/dest_shape", json!(vec![1; 17]), "copies[0].dest_shape: 17 dimensions"),
        ("/copies/0/ops/0/op", json!("sqrt"), "copies[0].ops[0].op: unknown variant `sqrt`"),
        ("/copies/0/ops/0/op", json!(3), "copies[0].ops[0].op: "),
        ("/copies/0/ops/0/dim", json!("0"), "copies[0].ops[0].dim: invalid type: string \"0\""),
        ("/copies/0/ops/0/by", json!(1), "copies[0].ops[0].by: unknown field `by`"),
        ("/copies/0/ops/1/shape", json!(8), "copies[0].ops[1].shape: invalid type: integer `8`"),
        (
            "/copies/0/ops/1/shape",
            json!(vec![1; 17]),
            "copies[0].ops[1].shape: 17 dimensions are more than 16",
        ),
        ("/copies/0/ops/1", json!({"op": "select", "dim": 0}), "copies[0].ops[1]: missing field `index`"),
        ("/copies/0/ops/1", json!({"dim": 0}), "copies[0].ops[1]: missing field `op`"),
        ("/copies/0/ops/1", json!("t"), "copies[0].ops[1]: invalid type: string \"t\""),
        ("/fills/0/element", json!("80"), "fills[0].element: a constant of 1 bytes for BF16"),
        ("/fills/0/element", json!("8x3f"), "fills[0].element: expected the bytes of one element"),
        ("/fills/0/after", json!(2), "fills[0].after: 2 copies before this fill, where 0 to 1 can be"),
        ("/fills/0/after", json!(-1), "fills[0].after: invalid value: integer `-1`"),
        ("/fills/0/after", json!("1"), "fills[0].after: invalid type: string \"1\""),
        ("/fills/0/after", json!(null), "fills[0].after: invalid type: null"),
        ("/fills/0/after", json!(u64::MAX), "fills[0].after: 18446744073709551615 copies before this fill"),
        ("/fills/0/dest_offset", json!(8), "fills[0]: the destination (offset 8"),
        ("/unsupported/bad", json!(1), "unsupported.bad: invalid type: integer `1`"),
        (
            "/unsupported/worse/params",
            json!(["p", "q"]),
            r#"unsupported.worse.params[1]: there is no parameter "q""#,
        ),
        ("/unsupported/worse/why", json!("q"), "unsupported.worse.why: unknown field `why`"),
    ] {
        let mut changed = capture();
        set(&mut changed, pointer, to);
        let found = read(&changed).unwrap_err().to_string();
        assert!(found.starts_with(error), "{pointer}\nexpected {error}\nfound    {found}");
    }
}

#[test]
fn fills_stand_between_copies_in_the_order_of_the_file() {
    let fill = |after: Value| {
        let mut fill = capture()["fills"][0].clone();
        if !after.is_null() {
            fill["after"] = after;
        }
        fill
    };
    let file = |fills: &[Value]| {
        let mut file = capture();
        file["copies"] = json!(vec![capture()["copies"][0].clone(); 3]);
        file["fills"] = json!(fills);
        file
    };
    let fills = [fill(json!(null)), fill(json!(0)), fill(json!(1)), fill(json!(3)), fill(json!(3))];
    let after: Vec<usize> = read(&file(&fills)).unwrap().fills.iter().map(|f| f.after).collect();
    assert_eq!(after, [0, 0, 1, 3, 3]);
    for (fills, error) in [
        ([fill(json!(2)), fill(json!(1))], "fills[1].after: 1 copies before this fill, where 2 to 3 can be"),
        ([fill(json!(2)), fill(json!(null))], "fills[1].after: 0 copies before this fill, where 2 to 3"),
        ([fill(json!(2)), fill(json!(4))], "fills[1].after: 4 copies before this fill, where 2 to 3"),
    ] {
        let found = read(&file(&fills)).unwrap_err().to_string();
        assert!(found.starts_with(error), "expected {error}\nfound    {found}");
    }
}

#[test]
fn what_is_wrong_with_sources_is_named_with_its_path() {
    let max = u64::MAX;
    for (pointer, to, error) in [
        (
            "/format",
            json!("restage-capture"),
            r#"format: expected "restage-sources", found "restage-capture""#,
        ),
        ("/version", json!(0), "version: version 0 is not known"),
        ("/sources/w/dtype", json!("half"), "sources.w.dtype: unknown dtype \"half\""),
        ("/sources/w/elsize", json!(4), "sources.w.elsize: BF16 has elements of 2 bytes, and this says 4"),
        ("/sources/w/shape", json!(vec![1; 17]), "sources.w.shape: 17 dimensions are more than 16"),
        ("/sources/w/shape", json!([3, 4]), "sources.w.shards[1]: shard [2..4, 0..4]"),
        ("/sources/w/note", json!(""), "sources.w.note: unknown field"),
        (
            "/sources/w/shards/1/offset",
            json!([-1, 0]),
            "sources.w.shards[1]: dimension 0: offset -1 with size 2",
        ),
        ("/sources/w/shards/1/offset", json!([i64::MAX, 0]), "sources.w.shards[1]: dimension 0: offset"),
        (
            "/sources/w/shards/1/shape",
            json!([2, -4]),
            "sources.w.shards[1]: dimension 1: offset 0 with size -4",
        ),
        (
            "/sources/w/shards/1/shape",
            json!([2]),
            "sources.w.shards[1]: offset has 2 dimensions and shape has 1",
        ),
        ("/sources/w/shards/0/addr", json!(-1), "sources.w.shards[0].addr: invalid value: integer `-1`"),
        ("/sources/w/shards/0/addr", json!(max), "sources.w.shards[0]: shard [0..2, 0..4] on session \"a\""),
        ("/sources/w/shards/1/digest", json!("0f"), "sources.w.shards[1].digest: expected \"sha256:\""),
        ("/sources/w/shards/1/host", json!("b"), "sources.w.shards[1].host: unknown field"),
    ] {
        let mut changed = sources();
        set(&mut changed, pointer, to);
        let found = SourcesFile::parse(changed.to_string().as_bytes()).unwrap_err().to_string();
        assert!(found.starts_with(error), "{pointer}\nexpected {error}\nfound    {found}");
    }
}

#[test]
fn keys_that_appear_twice_are_errors_at_every_depth() {
    let text = capture().to_string();
    for (from, to, error) in [
        (r#""version":1"#, r#""version":1,"version":1"#, "duplicate field `version`"),
        (r#""p":{"#, r#""p":{"dtype":"U8","shape":[]},"p":{"#, "params.p: this key appears twice"),
        (r#""bad":"mul""#, r#""bad":"mul","bad":"mul""#, "unsupported.bad: this key appears twice"),
        (
            r#""dest_offset":0"#,
            r#""dest_offset":0,"dest_offset":0"#,
            "copies[0]: duplicate field `dest_offset`",
        ),
        (r#""op":"narrow""#, r#""op":"narrow","op":"narrow""#, "copies[0].ops[0]: duplicate field `op`"),
        (r#""start":2"#, r#""start":2,"start":2"#, "copies[0].ops[0]: duplicate field `start`"),
    ] {
        assert!(text.contains(from), "{from}");
        let found = CaptureFile::parse(text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
        assert!(found.contains(error), "expected {error}\nfound    {found}");
    }
    let text =
        sources().to_string().replacen(r#""w":{"#, r#""w":{"dtype":"U8","shape":[],"shards":[]},"w":{"#, 1);
    let found = SourcesFile::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(found.starts_with("sources.w: this key appears twice"), "{found}");
}

#[test]
fn damaged_text_is_refused() {
    let good = capture().to_string();
    let deep = "[".repeat(1 << 20);
    let mut nested = capture();
    nested["copies"] = serde_json::from_str(&format!("{}{}", "[".repeat(100), "]".repeat(100))).unwrap();
    for text in ["", " ", "null", "3", "{", "[{]", "\u{feff}[]", &good[1..], &good[..good.len() - 1], &deep] {
        CaptureFile::parse(text.as_bytes()).unwrap_err();
        SourcesFile::parse(text.as_bytes()).unwrap_err();
    }
    read(&nested).unwrap_err();
    CaptureFile::parse(format!("{good} {{}}").as_bytes()).unwrap_err();
    CaptureFile::parse(b"[{\"source\": \"\xff\"}]").unwrap_err();
    let large = vec![b' '; MAX_FILE_BYTES as usize + 1];
    assert_eq!(CaptureFile::parse(&large), Err(WireError::TooLarge { limit: MAX_FILE_BYTES }));
    assert_eq!(SourcesFile::parse(&large), Err(WireError::TooLarge { limit: MAX_FILE_BYTES }));
}

#[test]
fn bare_copies_make_the_smallest_parameters_that_hold_them() {
    let text = format!(
        r#"[{}, {}, {}]"#,
        COPY.replace('}', r#", "dest_dtype": "bf16"}"#),
        COPY.replace("[4, 1]}", r#"[8, 2], "dest_dtype": "BF16"}"#)
            .replace("\"dest_offset\": 0", "\"dest_offset\": 3"),
        COPY.replace("[2, 4]", "[0, 4]").replace("\"p\"", "\"q\"").replace('}', r#", "dest_dtype": "U8"}"#),
    );
    let captured = CaptureFile::parse(text.as_bytes()).unwrap();
    let params: Vec<_> = captured.params.iter().map(|p| (p.name.as_str(), p.dtype, &p.shape[..])).collect();
    assert_eq!(params, [("p", Dtype::BF16, &[18][..]), ("q", Dtype::U8, &[0][..])]);
    assert_eq!(captured.copies.iter().map(|c| c.param).collect::<Vec<_>>(), [0, 0, 1]);

    let error = CaptureFile::parse(format!("[{COPY}]").as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "[0].dest_dtype: is missing, and nothing else says what p holds");
    let both = text.replacen("BF16", "F32", 1);
    let error = CaptureFile::parse(both.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "[1].dest_dtype: p holds BF16, and this says F32");
    let bad = text.replacen("\"ops\": []", r#""ops": [{"op": "t", "dim": 1}]"#, 1);
    let error = CaptureFile::parse(bad.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("[0].ops[0].dim: unknown field `dim`"), "{error}");
    let before = text.replacen("\"dest_offset\": 0", "\"dest_offset\": -1", 1);
    let error = CaptureFile::parse(before.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("[0].dest_offset: offset -1"), "{error}");
}

#[test]
fn bare_sources_are_read_like_those_of_a_file() {
    let file = sources();
    let bare = file["sources"].to_string();
    assert_eq!(SourcesFile::parse(bare.as_bytes()), SourcesFile::parse(file.to_string().as_bytes()));
    assert!(SourcesFile::parse(b"{}").unwrap().is_empty());
    // A source may have the name of a key.
    let bare = format!(r#"{{"format": {}}}"#, file["sources"]["w"]);
    assert!(SourcesFile::parse(bare.as_bytes()).unwrap().get("format").is_some());
    let error = SourcesFile::parse(b"{\"version\": 1, \"sources\": {}}").unwrap_err().to_string();
    assert!(error.starts_with("version: "), "{error}");
}

#[test]
fn digests_are_kept() {
    let file = SourcesFile::read(sources().to_string().as_bytes()).unwrap();
    let shards = &file.sources[0].1.shards;
    assert_eq!(shards[0].digest, None);
    assert_eq!(shards[1].digest.as_ref().unwrap().to_string(), format!("sha256:{}", "0f".repeat(32)));
    assert_eq!(SourcesFile::read(file.write().as_bytes()).unwrap(), file);
}
