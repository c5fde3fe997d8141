//! A proxy that spoils what passes through it, by a seed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// What is done to the bytes from the publisher, once, after some of them.
#[derive(Debug, Clone, Copy)]
pub enum Spoil {
    Flip,
    Drop,
    Insert,
    Repeat,
    Close,
    Silence,
    Delay,
    /// Nothing more comes, and the proxy tells when it is so; not one of those that are drawn.
    Hold,
}

pub const SPOILS: [Spoil; 7] =
    [Spoil::Flip, Spoil::Drop, Spoil::Insert, Spoil::Repeat, Spoil::Close, Spoil::Silence, Spoil::Delay];

pub struct Proxy {
    pub address: SocketAddr,
    /// Gets a word when a connection is held.
    pub held: Receiver<()>,
    end: Arc<AtomicBool>,
}

impl Proxy {
    /// Spoils the bytes after the first `after` of each connection made once `armed` is set.
    pub fn new(to: SocketAddr, spoil: Spoil, after: usize, armed: &Arc<AtomicBool>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let (hold, held) = mpsc::channel();
        let (ended, armed) = (Arc::clone(&end), Arc::clone(armed));
        thread::spawn(move || {
            for client in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (client, server) = (client.unwrap(), TcpStream::connect(to).unwrap());
                let (from, into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(from, into));
                let armed = Arc::clone(&armed);
                let hold = hold.clone();
                thread::spawn(move || spoiled(server, client, spoil, after, &armed, &hold));
            }
        });
        Proxy { address, held, end }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

fn pass(mut from: TcpStream, mut into: TcpStream) {
    let _ = std::io::copy(&mut from, &mut into);
    let _ = into.shutdown(Shutdown::Write);
}

fn spoiled(
    mut from: TcpStream,
    mut into: TcpStream,
    spoil: Spoil,
    after: usize,
    armed: &AtomicBool,
    hold: &Sender<()>,
) {
    let mut buffer = vec![0; 16 << 10];
    let (mut left, mut done) = (after, false);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..count].to_vec();
        if armed.load(Ordering::Relaxed) && !done {
            if left < bytes.len() {
                done = true;
                match spoil {
                    Spoil::Flip => bytes[left] ^= 1 << (after % 8),
                    Spoil::Drop => drop(bytes.remove(left)),
                    Spoil::Insert => bytes.insert(left, after as u8),
                    Spoil::Repeat => bytes.extend_from_within(..),
                    Spoil::Close => bytes.truncate(left),
                    Spoil::Silence => {
                        thread::sleep(Duration::from_millis(700));
                        break;
                    }
                    Spoil::Delay => thread::sleep(Duration::from_millis(20)),
                    Spoil::Hold => {
                        let _ = hold.send(());
                        // Until the other side closes it.
                        let _ = std::io::copy(&mut into.try_clone().unwrap(), &mut std::io::sink());
                        break;
                    }
                }
            } else {
                left -= bytes.len();
            }
        }
        if into.write_all(&bytes).is_err() || (done && matches!(spoil, Spoil::Close)) {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
