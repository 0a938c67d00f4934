//! A relay in front of a server that breaks the round trips it is told to break.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::fixture::{Answer, Fault, Point, Problem};

/// Requests that a client may send in place of its first message; none is served in the clear.
const ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];
const CANCEL: u32 = 80_877_102;

/// Passes on what clients and the server say, frame by frame. It ends with this value.
#[derive(Debug)]
pub(super) struct Relay {
    shared: Arc<Shared>,
    port: u16,
}

#[derive(Debug, Default)]
struct Shared {
    fault: Mutex<Option<(Fault, u32)>>,
    closed: AtomicBool,
}

impl Relay {
    /// Starts one in front of the server on a port.
    pub(super) fn start(server: u16) -> Result<Self, Problem> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.closed.load(Ordering::Acquire) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || {
                    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
                    // A client whose server has gone sees the connection end.
                    let _ended = serve(&shared, client, server);
                });
            }
        });
        Ok(Self { shared, port })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Breaks the next so many round trips that the fault is about.
    pub(super) fn arm(&self, fault: Fault, times: u32) {
        *self.shared.lock() = Some((fault, times));
    }

    /// Breaks nothing more; answers how many round trips are left unbroken.
    pub(super) fn disarm(&self) -> u32 {
        self.shared.lock().take().map_or(0, |(_, left)| left)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<(Fault, u32)>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault, if it is about this.
    fn take(&self, is_meant: impl FnOnce(&Fault) -> bool) -> Option<Fault> {
        let mut armed = self.lock();
        let (fault, left) = armed.as_mut()?;
        if *left == 0 || !is_meant(fault) {
            return None;
        }
        *left -= 1;
        Some(fault.clone())
    }
}

/// What is due to the client.
#[derive(Debug)]
struct Due {
    /// How often the server will have been ready: for each request, which may be sent before the
    /// answer to the one before has come, and for the beginning.
    asked: u64,
    answered: u64,
    /// The number of the answer that is kept from the client, and what it is told instead.
    broken: Option<(u64, Answer)>,
}

fn serve(shared: &Shared, mut client: TcpStream, server: SocketAddr) -> io::Result<()> {
    client.set_nodelay(true)?;
    let first = loop {
        let (code, first) = startup(&mut client)?;
        match code {
            code if ENCRYPTION.contains(&code) => client.write_all(b"N")?,
            CANCEL => {
                return TcpStream::connect(server)?.write_all(&first);
            }
            _ => break first,
        }
    };
    if let Some(fault) = shared.take(|fault| fault.point == Point::Connecting) {
        return client.write_all(&told(&fault.answer));
    }
    let mut server = TcpStream::connect(server)?;
    server.set_nodelay(true)?;
    server.write_all(&first)?;
    let due = Arc::new(Mutex::new(Due {
        asked: 1,
        answered: 0,
        broken: None,
    }));
    let (mut answers, mut asker) = (server.try_clone()?, client.try_clone()?);
    let answering = Arc::clone(&due);
    thread::spawn(move || {
        // Either end has closed.
        let _ended = answer(&mut answers, &mut asker, &answering);
        close(&answers, &asker);
    });
    let asked = ask(shared, &mut client, &mut server, &due);
    close(&client, &server);
    asked
}

fn close(one: &TcpStream, other: &TcpStream) {
    for socket in [one, other] {
        // It may have been closed from the other side.
        let _closed = socket.shutdown(Shutdown::Both);
    }
}

/// Passes on what the client says; answers in place of the server where that is told.
fn ask(
    shared: &Shared,
    client: &mut (impl Read + Write),
    server: &mut impl Write,
    due: &Mutex<Due>,
) -> io::Result<()> {
    let mut statements = HashMap::<String, String>::new();
    loop {
        let frame = frame(client)?;
        let text = match frame[0] {
            b'P' => {
                let mut parts = texts(&frame);
                let name = parts.next().unwrap_or_default();
                statements.insert(name, parts.next().unwrap_or_default());
                None
            }
            b'B' => texts(&frame)
                .nth(1)
                .and_then(|name| statements.get(&name).cloned()),
            b'Q' => texts(&frame).next(),
            _ => None,
        };
        let is_meant = |fault: &Fault, text: &str| {
            fault.point != Point::Connecting && text.contains(fault.statement)
        };
        let fault = text.and_then(|text| shared.take(|fault| is_meant(fault, &text)));
        let mut due = due.lock().unwrap_or_else(PoisonError::into_inner);
        match fault {
            None => {}
            Some(fault) if fault.point == Point::Before => {
                // What it has begun to send is thrown away with the connection.
                return client.write_all(&told(&fault.answer));
            }
            Some(fault) => due.broken = Some((due.asked + 1, fault.answer)),
        }
        due.asked += u64::from(matches!(frame[0], b'S' | b'Q'));
        drop(due);
        server.write_all(&frame)?;
    }
}

/// Passes on what the server says, or something else once it has said all of it.
fn answer(server: &mut impl Read, client: &mut impl Write, due: &Mutex<Due>) -> io::Result<()> {
    loop {
        let frame = frame(server)?;
        let mut due = due.lock().unwrap_or_else(PoisonError::into_inner);
        let nth = due.answered + 1;
        let is_last = frame[0] == b'Z';
        due.answered += u64::from(is_last);
        let broken = due.broken.filter(|(broken, _)| *broken == nth);
        drop(due);
        match broken {
            None => client.write_all(&frame)?,
            Some((_, answer)) if is_last => {
                client.write_all(&told(&answer))?;
                if !matches!(answer, Answer::Report("ERROR", _)) {
                    return Ok(());
                }
                client.write_all(&frame)?;
            }
            Some(_) => {}
        }
    }
}

/// The first message of a client, which has no type, and the number that it begins with.
fn startup(client: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    let mut message = vec![0; 4];
    client.read_exact(&mut message)?;
    let message = rest(client, message, 0)?;
    match message[4..] {
        [a, b, c, d, ..] => Ok((u32::from_be_bytes([a, b, c, d]), message)),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

fn frame(socket: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 5];
    socket.read_exact(&mut frame)?;
    rest(socket, frame, 1)
}

/// Reads what belongs to a message whose length is at a place. A length alone takes no memory.
fn rest(socket: &mut impl Read, mut message: Vec<u8>, at: usize) -> io::Result<Vec<u8>> {
    let length = [0, 1, 2, 3].map(|byte| message[at + byte]);
    let length = u32::from_be_bytes(length) as usize + at;
    if length < message.len() {
        return Err(ErrorKind::InvalidData.into());
    }
    let missing = length - message.len();
    if socket.take(missing as u64).read_to_end(&mut message)? < missing {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

/// The texts that a message begins with.
fn texts(frame: &[u8]) -> impl Iterator<Item = String> {
    let texts = frame[5..].split(|byte| *byte == 0);
    texts.map(|text| String::from_utf8_lossy(text).into_owned())
}

/// What the client is told; nothing where the connection just ends.
fn told(answer: &Answer) -> Vec<u8> {
    let Answer::Report(severity, code) = answer else {
        return Vec::new();
    };
    // As servers and poolers put it: for some drivers that is all they tell.
    let message = match *code {
        "40003" => "result is ambiguous",
        "53200" => "out of shared memory",
        "57014" => "canceling statement due to user request",
        "57P01" => "terminating connection due to administrator command",
        "57P03" => "the database system is shutting down",
        _ => "the relay was told to break this",
    };
    let fields = format!("S{severity}\0V{severity}\0C{code}\0M{message}\0\0");
    let length = u32::try_from(fields.len() + 4).unwrap_or(u32::MAX);
    [b"E".as_slice(), &length.to_be_bytes(), fields.as_bytes()].concat()
}

#[cfg(test)]
mod fuzz;
