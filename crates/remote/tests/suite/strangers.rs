//! Peers that are not what they should be, on either side.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use restage_nest::Nest;
use restage_remote::frame::{Header, Kind};
use restage_remote::{
    HelloError, PublishError, PublishOptions, Publisher, RemoteError, Shelf, TcpTransport, Token,
};
use restage_transport::testing::noise;
use restage_transport::{Batch, Cancel, Entry, EntryError, Transport};

use crate::proxy::{Proxy, Spoil};
use crate::{connect, publish, quick};

/// Megabytes of noise each way; `RESTAGE_NOISE_MB` sets another number.
fn noise_bytes() -> usize {
    std::env::var("RESTAGE_NOISE_MB").ok().and_then(|n| n.parse().ok()).unwrap_or(4) << 20
}

fn token(text: &str) -> Option<Token> {
    Some(Token::new(text).unwrap())
}

fn with_token(token: Option<Token>) -> PublishOptions {
    let mut options = PublishOptions::default();
    options.token = token;
    options
}

fn hello_error(publisher: &Publisher, token: Option<Token>) -> HelloError {
    let mut options = quick();
    options.token = token;
    match TcpTransport::connect([&*publisher.address().to_string()], options) {
        Err(RemoteError::Hello { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_right_token_is_let_in() {
    let sessions = [("secret", 0, vec![7; 100])];
    let publisher = publish(&sessions, with_token(token("the right token, long")));
    assert!(matches!(hello_error(&publisher, None), HelloError::TokenWanted));
    assert!(matches!(hello_error(&publisher, token("a wrong token, as long")), HelloError::WrongToken));
    let open = publish(&sessions, PublishOptions::default());
    assert!(matches!(hello_error(&open, token("the right token, long")), HelloError::NoToken));
    let mut options = quick();
    options.token = token("the right token, long");
    let transport = TcpTransport::connect([&*publisher.address().to_string()], options).unwrap();
    let batch = one(100);
    let mut dest = [0; 100];
    let batch = Batch { sessions: vec!["secret".into()], ..batch };
    transport.read(&batch, &mut [&mut dest]).unwrap().into_result().unwrap();
    assert_eq!(dest, [7; 100]);
}

/// One without the token sees a hello, of which all but the nonce is always the same, and nothing else.
#[test]
fn whoever_proves_nothing_sees_no_name() {
    let publisher = publish(&[("secret", 0, vec![7; 100])], with_token(token("the right token, long")));
    let mut stream = TcpStream::connect(publisher.address()).unwrap();
    let mut hello = b"RESTAGE\0\x02\0\0\0\x01\0\0\0".to_vec();
    hello.extend_from_slice(&[9; 32]);
    hello.extend_from_slice(&[1; 32]);
    hello.extend_from_slice(&Header::of(Kind::Sessions, 0, &[]).encode());
    stream.write_all(&hello).unwrap();
    let mut seen = Vec::new();
    let _ = stream.read_to_end(&mut seen);
    assert_eq!(seen.len(), 48);
    assert_eq!(seen[..16], hello[..16]);
}

#[test]
fn other_hosts_need_a_token() {
    let error = Publisher::start("0.0.0.0:0", Shelf::new([]), PublishOptions::default()).unwrap_err();
    assert!(matches!(error, PublishError::Open { .. }), "{error}");
    assert!(error.to_string().contains("0.0.0.0"), "{error}");
    Publisher::start("0.0.0.0:0", Shelf::new([]), with_token(token("sixteen bytes and more"))).unwrap();
}

fn one(length: u64) -> Batch {
    let nest = Nest::contiguous(0, 0, length);
    Batch { sessions: vec!["a".into()], entries: vec![Entry { session: 0, dest: 0, nest }] }
}

fn first_error(transport: &TcpTransport) -> EntryError {
    let mut dest = vec![0; 5000];
    let receipt = transport.read(&one(5000), &mut [&mut dest]).unwrap();
    receipt.outcomes[0].clone().unwrap_err()
}

#[test]
fn noise_does_a_publisher_no_harm() {
    let publisher = publish(&[("a", 0, noise(5000, 1))], PublishOptions::default());
    let mut left = noise_bytes();
    let mut seed = 0;
    while left > 0 {
        seed += 1;
        let mut stream = TcpStream::connect(publisher.address()).unwrap();
        let mut bytes = b"RESTAGE\0\x02\0\0\0\0\0\0\0".to_vec();
        bytes.extend_from_slice(&[3; 32]);
        let garbage = noise(64 << 10, seed);
        match seed % 3 {
            // Noise for a hello, noise for a header, noise in a frame that is one.
            0 => bytes = garbage.clone(),
            1 => bytes.extend_from_slice(&garbage),
            _ => {
                let payload = &garbage[..(seed as usize * 97) % (60 << 10)];
                bytes.extend_from_slice(&Header::of(Kind::Read, seed, payload).encode());
                bytes.extend_from_slice(payload);
            }
        }
        let _ = stream.write_all(&bytes);
        left = left.saturating_sub(64 << 10);
    }
    let transport = connect_soon(&publisher);
    let mut dest = vec![0; 5000];
    transport.read(&one(5000), &mut [&mut dest]).unwrap().into_result().unwrap();
    assert_eq!(dest, noise(5000, 1));
}

/// A publisher may be full of strangers for a moment.
fn connect_soon(publisher: &Publisher) -> TcpTransport {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match TcpTransport::connect([&*publisher.address().to_string()], quick()) {
            Ok(transport) => return transport,
            Err(e) => assert!(Instant::now() < until, "{e}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Each connection answers with noise: bare, or in frames whose checksums are right.
#[test]
fn noise_does_a_client_no_harm() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let times = noise_bytes() / (64 << 10);
    let peer = thread::spawn(move || {
        for seed in 0..times as u64 {
            let (mut stream, _) = listener.accept().unwrap();
            let garbage = noise(64 << 10, seed + 1);
            let mut bytes = b"RESTAGE\0\x02\0\0\0\0\0\0\0".to_vec();
            bytes.extend_from_slice(&[3; 32]);
            match seed % 3 {
                0 => bytes = garbage,
                1 => bytes.extend_from_slice(&garbage),
                _ => {
                    for id in 0..2 {
                        let payload = [&[0; 8][..], &garbage[..32 << 10]].concat();
                        bytes.extend_from_slice(&Header::of(Kind::Blob, id, &payload).encode());
                        bytes.extend_from_slice(&payload);
                    }
                }
            }
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    for _ in 0..times {
        TcpTransport::connect([&*address], quick()).unwrap_err();
    }
    peer.join().unwrap();
}

#[test]
fn a_silent_publisher_is_an_error_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = quick();
    options.deadline = Duration::from_millis(200);
    let begun = Instant::now();
    let error = TcpTransport::connect([&*listener.local_addr().unwrap().to_string()], options).unwrap_err();
    assert!(matches!(error, RemoteError::Io { kind: std::io::ErrorKind::TimedOut, .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_publisher_that_is_gone_or_replaced_is_an_error() {
    let sessions = [("a", 0, noise(5000, 1))];
    let publisher = publish(&sessions, PublishOptions::default());
    let address = publisher.address().to_string();
    let transport = connect(&publisher);
    let begun = Instant::now();
    publisher.stop();
    assert!(begun.elapsed() < Duration::from_secs(3), "an idle connection holds up no stop");
    let gone = first_error(&transport);
    assert!(gone.to_string().contains("session a"), "{gone}");
    let mut shelf = Shelf::new("a catalog");
    shelf.memory("a", [(0, Arc::new(noise(5000, 2)) as _)]).unwrap();
    // The port may be taken by another meanwhile; then there is nothing to see.
    let Ok(_other) = Publisher::start(&address, shelf, PublishOptions::default()) else { return };
    let replaced = first_error(&transport);
    assert!(replaced.to_string().contains("another publisher"), "{replaced}");
}

#[test]
fn sessions_that_differ_are_refused() {
    let one = publish(&[("a", 0, vec![1; 10])], PublishOptions::default());
    let other = publish(&[("a", 0, vec![1; 11])], PublishOptions::default());
    let addresses = [one.address().to_string(), other.address().to_string()];
    let error = TcpTransport::connect(addresses.iter().map(String::as_str), quick()).unwrap_err();
    assert!(matches!(error, RemoteError::Disagree { .. }), "{error}");
}

#[test]
fn more_connections_than_allowed_are_told_so() {
    let mut options = PublishOptions::default();
    options.connections = 1;
    let publisher = publish(&[("a", 0, vec![1; 10])], options);
    let _first = connect(&publisher);
    assert!(matches!(hello_error(&publisher, None), HelloError::Full));
}

/// The deadline is far beyond what the test would wait for.
#[test]
fn a_cancelled_read_does_not_wait_for_a_publisher_that_says_nothing() {
    let publisher = publish(&[("a", 0, noise(5000, 1))], PublishOptions::default());
    let armed = Arc::new(AtomicBool::new(false));
    let proxy = Proxy::new(publisher.address(), Spoil::Hold, 0, &armed);
    let mut options = quick();
    options.deadline = Duration::from_secs(24 * 60 * 60);
    let transport = TcpTransport::connect([&*proxy.address.to_string()], options).unwrap();
    armed.store(true, Ordering::Relaxed);
    let cancel = Cancel::new();
    let mut dest = vec![0; 5000];
    let receipt = thread::scope(|scope| {
        let reading = scope.spawn(|| transport.read_with(&one(5000), &mut [&mut dest], &cancel));
        proxy.held.recv().unwrap();
        cancel.cancel();
        reading.join().unwrap().unwrap()
    });
    let told = receipt.outcomes[0].clone().unwrap_err();
    assert!(matches!(told, EntryError::Cancelled { address: 0, length: 5000, .. }), "{told}");
    armed.store(false, Ordering::Relaxed);
    transport.read(&one(5000), &mut [&mut dest]).unwrap().into_result().unwrap();
    assert_eq!(dest, noise(5000, 1));
}
