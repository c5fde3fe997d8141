//! The protocol's JSON Schema.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::{Value, json};

fn document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/worker-protocol.schema.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn part(name: &str) -> Validator {
    let mut document = document();
    let object = document.as_object_mut().unwrap();
    object.remove("oneOf");
    object.insert("$ref".into(), format!("#/$defs/{name}").into());
    jsonschema::validator_for(&document).unwrap()
}

/// Panics if a line of stdout is none.
pub fn check_reply(reply: &Value) {
    static SCHEMA: OnceLock<Validator> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| jsonschema::validator_for(&document()).unwrap());
    if let Err(e) = schema.validate(reply) {
        panic!("{e}: {}", reply.to_string().chars().take(500).collect::<String>());
    }
}

/// Whether a request is one that the schema describes.
pub fn is_request(request: &Value) -> bool {
    static SCHEMA: OnceLock<Validator> = OnceLock::new();
    SCHEMA.get_or_init(|| part("request")).is_valid(request)
}

#[test]
fn the_schema_is_one_and_tells_replies_apart() {
    jsonschema::meta::validate(&document()).unwrap();
    let schema = jsonschema::validator_for(&document()).unwrap();
    for good in [
        json!({"request_id": null, "token_id": 3}),
        json!({"request_id": {"a": []}, "hidden_b64": "AAA=", "seq_len": 1}),
        json!({"error": "x", "kind": "invalid_json"}),
        json!({"request_id": 1, "error": "x", "kind": "position"}),
    ] {
        assert!(schema.is_valid(&good), "{good}");
    }
    for bad in [
        json!({"token_id": 3}),
        json!({"request_id": 1, "token_id": -3}),
        json!({"request_id": 1, "token_id": 3, "more": 1}),
        json!({"request_id": 1, "hidden_b64": "AAA", "seq_len": 1}),
        json!({"request_id": 1, "error": "x"}),
        json!({"request_id": 1, "error": "x", "kind": "other"}),
        json!({"error": "x", "kind": "position"}),
        json!({"request_id": 1, "error": "x", "kind": "invalid_json"}),
        json!({"status": "ready"}),
        json!([]),
    ] {
        assert!(!schema.is_valid(&bad), "{bad}");
    }
}

#[test]
fn the_schema_and_the_page_have_the_kinds_of_the_code() {
    let document = document();
    let listed = |name: &str| document["$defs"][name]["enum"].as_array().unwrap().clone();
    let kinds: Vec<Value> = [listed("line_kind"), listed("request_kind")].concat();
    assert_eq!(kinds, restage_worker::Kind::ALL.map(|kind| Value::from(kind.name())));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/worker-protocol.md");
    let page = fs::read_to_string(page).unwrap();
    for kind in restage_worker::Kind::ALL {
        assert!(page.contains(&format!("| `{}` |", kind.name())), "the page lacks {}", kind.name());
    }
}
