//! Which URLs are taken, and which are refused rather than read otherwise than meant.

use restage_object::{ObjectError, ObjectStoreAt};

#[test]
fn urls_name_a_store_and_a_prefix() {
    for (url, name, path) in [
        ("http://127.0.0.1:9/models/a", "x.safetensors", "models/a/x.safetensors"),
        ("http://127.0.0.1:9/models/a/", "x.safetensors", "models/a/x.safetensors"),
        ("http://127.0.0.1:9", "x", "x"),
        ("http://127.0.0.1:9/with%20space", "x", "with space/x"),
        ("s3://bucket/prefix", "sub/x", "prefix/sub/x"),
        ("s3://bucket", "x", "x"),
        ("s3://bucket/file", "", "file"),
        ("gs://bucket/prefix", "x", "prefix/x"),
        ("https://host/prefix", "x", "prefix/x"),
    ] {
        let place = ObjectStoreAt::open(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(place.path(name).unwrap().as_ref(), path, "{url}");
        assert_eq!(place.name(), url);
        assert!(ObjectStoreAt::is_url(url));
    }
}

#[test]
fn what_would_be_left_out_is_refused() {
    for (url, part) in [
        ("http://host/a?signature=1", "a query or a fragment"),
        ("http://host/a#part", "a query or a fragment"),
        ("http://user:secret@host/a", "a user or a password"),
        ("s3:///key", "no host or bucket"),
        ("ftp://host/a", "none of s3, gs, az, http and https"),
        ("models/a", "no scheme"),
    ] {
        let error = ObjectStoreAt::open(url).unwrap_err();
        assert!(matches!(error, ObjectError::Url { .. }), "{url}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(part) && !text.contains("secret"), "{url}: {text}");
    }
    let place = ObjectStoreAt::open("http://host/a").unwrap();
    for name in ["../b", "a//b", "./b"] {
        assert!(place.path(name).is_err(), "{name}");
    }
}

#[test]
fn an_unknown_setting_is_refused() {
    let error = ObjectStoreAt::open_with("s3://bucket/a", &[("no_such_key", "1")]).unwrap_err();
    assert!(error.to_string().contains("no_such_key"), "{error}");
}
