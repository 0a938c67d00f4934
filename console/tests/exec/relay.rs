//! A cable to the server that can be cut: what is sent then arrives nowhere, and nobody is told.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Debug)]
pub(crate) struct Relay {
    port: u16,
    cut: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
    /// All that were ever connected: the ends of a cable that is cut do not hear of each other.
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub(crate) fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (cut, closed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (is_cut, is_closed) = (Arc::clone(&cut), Arc::clone(&closed));
        let ends = Arc::<Mutex<Vec<TcpStream>>>::default();
        let known = Arc::clone(&ends);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if is_closed.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone(), to.try_clone());
                    let is_cut = Arc::clone(&is_cut);
                    if let (Ok(from), Ok(to)) = (from, to) {
                        thread::spawn(move || pass_on(from, to, &is_cut));
                    }
                }
                known.lock().expect("the ends").extend([client, server]);
            }
        });
        Self {
            port,
            cut,
            closed,
            ends,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on, for connections that are there and those to come.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        for end in self.ends.lock().expect("the ends").iter() {
            // It may have been closed from the other side.
            let _closed = end.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 {
            break;
        }
        // What is lost in a cut is acknowledged by the cable and by nobody else.
        if !is_cut.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    if !is_cut.load(Ordering::SeqCst) {
        // It may have been closed from the other side.
        let _closed = to.shutdown(Shutdown::Both);
    }
}
