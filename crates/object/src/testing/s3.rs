//! A real server of S3: `moto`, out of a Python environment that `cargo xtask s3-server` makes.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use object_store::ObjectStoreExt;
use tokio::runtime::Builder;

use crate::{ObjectError, ObjectStoreAt};

/// The packages of the environment, all of them pinned.
pub const PACKAGES: [&str; 26] = [
    "blinker==1.9.0",
    "boto3==1.44.8",
    "botocore==1.44.8",
    "certifi==2026.10.19.post1",
    "cffi==2.1.1",
    "charset-normalizer==3.5.3",
    "click==8.5.1",
    "cryptography==50.0.2",
    "flask==3.1.3",
    "flask-cors==6.0.5",
    "idna==3.20",
    "itsdangerous==2.2.0",
    "jinja2==3.1.6",
    "jmespath==1.1.0",
    "markupsafe==3.0.4",
    "moto==5.2.5",
    "pycparser==3.12",
    "python-dateutil==2.9.0.post0",
    "pyyaml==6.0.4",
    "requests==2.34.2",
    "responses==0.26.3",
    "s3transfer==0.19.3",
    "six==1.17.0",
    "urllib3==2.8.0",
    "werkzeug==3.1.9",
    "xmltodict==1.0.4",
];

/// Serves on a free port, says which, and ends with its standard input: whatever becomes of the process that
/// started it, nothing stays behind.
const SCRIPT: &str = "\
import logging, sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
logging.getLogger('werkzeug').setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
";

/// The bucket that everything is put in.
const BUCKET: &str = "restage";

/// The folder of the Python environment: in `$RESTAGE_CACHE`, else `$XDG_CACHE_HOME/restage`, else
/// `~/.cache/restage`. `None` where none of the three variables is set.
pub fn python_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v: &OsString| !v.is_empty()).map(PathBuf::from);
    let cache = set("RESTAGE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").filter(|base| base.is_absolute()).map(|base| base.join("restage")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/restage")))?;
    Some(cache.join("s3-server-moto-5.2.5"))
}

/// A server of S3 in a process of its own, until it is dropped.
#[derive(Debug)]
pub struct S3Server {
    process: Child,
    port: u16,
}

impl S3Server {
    /// A server with one empty bucket; `None` where there is no environment to start it from.
    ///
    /// # Panics
    /// When there is one and the server does not start.
    pub fn start() -> Option<Self> {
        let python = python_folder()?.join("bin/python");
        if !python.exists() {
            return None;
        }
        let mut process = Command::new(python)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the Python of the S3 server starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("its output is piped"))
            .read_line(&mut line)
            .expect("its output can be read");
        let port =
            line.trim().parse().unwrap_or_else(|_| panic!("the S3 server says its port, not {line:?}"));
        let server = S3Server { process, port };
        server.make_bucket();
        Some(server)
    }

    /// The base of its URLs.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The settings that lead [`ObjectStoreAt::open_with`] to it; in capitals they are environment variables.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("aws_endpoint", self.endpoint()),
            ("aws_allow_http", "true".to_owned()),
            ("aws_access_key_id", "test".to_owned()),
            ("aws_secret_access_key", "test".to_owned()),
            ("aws_region", "us-east-1".to_owned()),
        ]
    }

    /// The URL of a key.
    pub fn url(&self, key: &str) -> String {
        format!("s3://{BUCKET}/{key}")
    }

    /// A prefix of its bucket.
    ///
    /// # Errors
    /// As [`ObjectStoreAt::open_with`].
    pub fn place(&self, prefix: &str) -> Result<ObjectStoreAt, ObjectError> {
        let settings = self.settings();
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        ObjectStoreAt::open_with(&self.url(prefix), &settings)
    }

    /// Puts an object into its bucket, or replaces it.
    ///
    /// # Panics
    /// When the server does not take it.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        let place = self.place("").expect("the settings are those of S3");
        let path = place.path(key).expect("a key is a path");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        let (send, done) = mpsc::channel();
        let payload = bytes.to_vec().into();
        runtime.spawn(async move { send.send(place.store().put(&path, payload).await) });
        done.recv().expect("a put ends").expect("the S3 server takes an object");
        runtime.shutdown_background();
    }

    /// The bucket is made by hand: `object_store` makes none.
    fn make_bucket(&self) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("the S3 server is there");
        write!(
            connection,
            "PUT /{BUCKET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .expect("the S3 server takes a request");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("the S3 server answers");
        assert_eq!(answer.split_whitespace().nth(1), Some("200"), "{answer}");
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
