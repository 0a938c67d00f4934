//! A proxy between a program and the server, which breaks what it passes on, message by message.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Result;

/// Requests that a client may send in place of its first message; none is served in the clear.
const ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];
const CANCEL: u32 = 80_877_102;

/// How the network of a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fine,
    /// Some connections end before a request is passed on.
    CutBefore,
    /// Some connections end after the server has answered, and before the client knows.
    CutAfter,
    /// Answers wait until this is over.
    Stall,
    /// Answers come late.
    Delay,
    /// Answers come byte by byte.
    Dribble,
    /// Nothing arrives on either side, and neither is told. What was sent is lost.
    HalfOpen,
}

/// A proxy in front of a port; it ends with this value.
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    weather: Mutex<Weather>,
    /// How often what was passed on was affected since the weather changed.
    hits: AtomicU64,
    server: u16,
    closed: AtomicBool,
}

impl Proxy {
    /// One that is reached at an address of this machine.
    pub(crate) fn start(address: Ipv4Addr, server: u16) -> Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            weather: Mutex::new(Weather::Fine),
            hits: AtomicU64::new(0),
            server,
            closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(io::Result::ok) {
                if accepting.closed.load(Ordering::Acquire) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                // A client whose server has gone sees the connection end.
                thread::spawn(move || drop(serve(&shared, client)));
            }
        });
        Ok(Self { shared, address })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the weather; answers how often the former had an effect.
    pub(crate) fn set(&self, weather: Weather) -> u64 {
        *self.shared.weather() = weather;
        self.shared.hits.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn weather(&self) -> MutexGuard<'_, Weather> {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Weather {
        *self.weather()
    }

    fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits while the weather is as it is.
    fn outlast(&self, weather: Weather) {
        self.hit();
        while self.now() == weather {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn cut() -> io::Error {
    ErrorKind::ConnectionAborted.into()
}

fn serve(shared: &Arc<Shared>, mut client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, shared.server));
    let first = loop {
        let first = startup(&mut client)?;
        match u32::from_be_bytes([first[4], first[5], first[6], first[7]]) {
            code if ENCRYPTION.contains(&code) => client.write_all(b"N")?,
            CANCEL => {
                if shared.now() == Weather::HalfOpen {
                    shared.outlast(Weather::HalfOpen);
                    return Err(cut());
                }
                let mut server = TcpStream::connect(server)?;
                server.write_all(&first)?;
                // The server closes once it has seen to it.
                return match server.read(&mut [0]) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                };
            }
            _ => break first,
        }
    };
    if shared.now() == Weather::HalfOpen {
        shared.outlast(Weather::HalfOpen);
        return Err(cut());
    }
    let mut server = TcpStream::connect(server)?;
    server.set_nodelay(true)?;
    server.write_all(&first)?;
    let (mut answers, mut asker) = (server.try_clone()?, client.try_clone()?);
    let answering = Arc::clone(shared);
    thread::spawn(move || {
        // Either end has closed.
        drop(answer(&answering, &mut answers, &mut asker));
        close(&answers, &asker);
    });
    let asked = ask(shared, &mut client, &mut server);
    close(&client, &server);
    asked
}

fn close(one: &TcpStream, other: &TcpStream) {
    for socket in [one, other] {
        // It may have been closed from the other side.
        drop(socket.shutdown(Shutdown::Both));
    }
}

/// Passes on what the client says.
fn ask(shared: &Shared, client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    loop {
        let frame = frame(client)?;
        match shared.now() {
            Weather::HalfOpen => {
                shared.outlast(Weather::HalfOpen);
                return Err(cut());
            }
            // What it has begun to send is thrown away with the connection.
            Weather::CutBefore if matches!(frame[0], b'S' | b'Q') && fastrand::u8(..4) == 0 => {
                shared.hit();
                return Err(cut());
            }
            _ => server.write_all(&frame)?,
        }
    }
}

/// Passes on what the server says.
fn answer(shared: &Shared, server: &mut TcpStream, client: &mut TcpStream) -> io::Result<()> {
    // Whether the answer that is being given is kept from the client, decided at its beginning.
    let (mut begun, mut kept) = (false, false);
    loop {
        let frame = frame(server)?;
        // The server is ready: everything that was asked is carried out.
        let is_last = frame[0] == b'Z';
        let weather = shared.now();
        if !begun {
            kept = weather == Weather::CutAfter && fastrand::u8(..4) == 0;
        }
        begun = !is_last;
        if kept {
            if is_last {
                shared.hit();
                return Err(cut());
            }
            continue;
        }
        match weather {
            Weather::Stall => {
                shared.outlast(Weather::Stall);
                client.write_all(&frame)?;
            }
            Weather::HalfOpen => {
                shared.outlast(Weather::HalfOpen);
                return Err(cut());
            }
            Weather::Delay => {
                if is_last && fastrand::u8(..3) == 0 {
                    shared.hit();
                    thread::sleep(Duration::from_millis(fastrand::u64(10..1500)));
                }
                client.write_all(&frame)?;
            }
            Weather::Dribble => {
                shared.hit();
                for byte in &frame {
                    client.write_all(&[*byte])?;
                    thread::sleep(Duration::from_micros(300));
                }
            }
            _ => client.write_all(&frame)?,
        }
    }
}

/// The first message of a client, which has no type.
fn startup(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 4];
    client.read_exact(&mut message)?;
    rest(client, message, 0)
}

fn frame(socket: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 5];
    socket.read_exact(&mut frame)?;
    rest(socket, frame, 1)
}

/// Reads what belongs to a message whose length is at a place.
fn rest(socket: &mut TcpStream, mut message: Vec<u8>, at: usize) -> io::Result<Vec<u8>> {
    let length = [0, 1, 2, 3].map(|byte| message[at + byte]);
    let length = u32::from_be_bytes(length) as usize + at;
    // A first message has a code at least.
    if length < message.len().max(5) || (at == 0 && length < 8) {
        return Err(ErrorKind::InvalidData.into());
    }
    let begun = message.len();
    message.resize(length, 0);
    socket.read_exact(&mut message[begun..])?;
    Ok(message)
}
