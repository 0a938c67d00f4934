//! Serving the page: `axum::serve` has no time limit for clients, and no limit of connections.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::HeaderValue;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::response::Response;
use hyper::Request;
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
#[cfg(unix)]
use rustix::event::{PollFd, PollFlags, Timespec, poll};
#[cfg(unix)]
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};

/// What clients may take of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How long the head of a request may take, from the beginning of the connection or the last answer on.
    pub(super) head: Duration,
    /// How long a client may leave an answer unread.
    pub(super) unread: Duration,
    /// How many connections there are at most.
    pub(super) connections: usize,
}

pub(super) const BOUNDS: Bounds = Bounds {
    head: Duration::from_secs(10),
    unread: Duration::from_secs(30),
    connections: 256,
};

/// A connection that is open.
#[derive(Debug)]
struct Open {
    /// Whether a request has come as a whole and has no answer yet: its client is not slow, and what it asked for may be
    /// half done.
    answers: bool,
    /// Whether changes are told on it: such a client was let in, and there are few.
    tells: bool,
    /// Larger for one that began later, or was asked or answered something later.
    latest: u64,
    closed: Arc<Notify>,
}

/// What happens on a connection.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The head of a request has come.
    Asked,
    /// The whole request has come: a body that is sent slowly keeps no place.
    Heard,
    /// The answer begins.
    Answered { tells: bool },
}

/// The connections, by their numbers.
#[derive(Debug, Default)]
struct Connections(Mutex<(u64, HashMap<u64, Open>)>);

impl Connections {
    fn with<T>(&self, look: impl FnOnce(&mut u64, &mut HashMap<u64, Open>) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (latest, open) = &mut *all;
        look(latest, open)
    }

    /// Adds a connection. Where there are too many, the one on which nothing has happened for the longest is closed: who
    /// comes new never waits for others.
    fn add(&self, number: u64, most: usize) -> Arc<Notify> {
        let closed = Arc::new(Notify::new());
        self.with(|latest, open| {
            if open.len() >= most {
                close_slowest(open);
            }
            *latest += 1;
            let one = Open {
                answers: false,
                tells: false,
                latest: *latest,
                closed: Arc::clone(&closed),
            };
            open.insert(number, one);
        });
        closed
    }

    /// Something has happened on a connection.
    fn is_used(&self, number: u64, step: Step) {
        self.with(|latest, open| {
            if let Some(one) = open.get_mut(&number) {
                *latest += 1;
                one.latest = *latest;
                one.answers = matches!(step, Step::Heard);
                one.tells = matches!(step, Step::Answered { tells: true });
            }
        });
    }

    /// Closes one connection, where there is any.
    fn close_one(&self) -> bool {
        self.with(|_, open| close_slowest(open))
    }

    fn are_many(&self, most: usize) -> bool {
        self.with(|_, open| open.len() > most / 2)
    }
}

/// Closes the connection on which nothing has happened for the longest; one that tells of changes after all others, and
/// last one whose request is being answered.
fn close_slowest(open: &mut HashMap<u64, Open>) -> bool {
    let order = |one: &Open| (one.answers, one.tells, one.latest);
    let slowest = open.iter().min_by_key(|(_, one)| order(one));
    let slowest = slowest.map(|(number, _)| *number);
    let closed = slowest.and_then(|number| open.remove(&number));
    if let Some(one) = &closed {
        one.closed.notify_one();
    }
    closed.is_some()
}

/// The body of a request, which tells when it has come as a whole.
struct Heard {
    body: Incoming,
    connections: Arc<Connections>,
    number: u64,
    told: bool,
}

impl Heard {
    fn new(body: Incoming, place: &Place) -> Self {
        let mut heard = Self {
            body,
            connections: Arc::clone(&place.connections),
            number: place.number,
            told: false,
        };
        heard.tell(false);
        heard
    }

    fn tell(&mut self, ended: bool) {
        if !self.told && (ended || self.body.is_end_stream()) {
            self.told = true;
            self.connections.is_used(self.number, Step::Heard);
        }
    }
}

impl hyper::body::Body for Heard {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.tell(frame.is_none());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Removes a connection however its task ends.
struct Place {
    connections: Arc<Connections>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.with(|_, open| open.remove(&self.number));
    }
}

/// Serves until `stop` is ready. Nothing is waited for then: streams of changes never end by themselves.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    stop: impl Future<Output = ()>,
) {
    let connections = Arc::new(Connections::default());
    let mut tasks = JoinSet::new();
    let mut stop = pin!(stop);
    for number in 0.. {
        let accepted = loop {
            tokio::select! {
                () = &mut stop => return,
                Some(_) = tasks.join_next() => {}
                accepted = listener.accept() => break accepted,
            }
        };
        let failed = matches!(&accepted, Err(error) if !is_of_client(error));
        let full = matches!(&accepted, Err(error) if is_full(error));
        // Those that have ended are not waited for below.
        while tasks.try_join_next().is_some() {}
        // Systems tell that no more files may be open before they look whether anybody waits.
        let waits = full && is_awaited(&listener);
        let closed = waits && connections.close_one();
        if let Ok((stream, peer)) = accepted {
            let closed = connections.add(number, bounds.connections);
            let place = Place {
                connections: Arc::clone(&connections),
                number,
            };
            let served = converse(stream, peer, router.clone(), place, bounds);
            tasks.spawn(async move {
                tokio::select! {
                    () = served => {}
                    () = closed.notified() => {}
                }
            });
        }
        if failed {
            let pause = Duration::from_millis(if closed { 1000 } else { 20 });
            tokio::select! {
                () = &mut stop => return,
                // Its file is free then.
                Some(_) = tasks.join_next(), if closed => {}
                () = sleep(pause) => {}
            }
        }
    }
}

/// Whether somebody waits to be accepted.
#[cfg(not(unix))]
fn is_awaited(_: &TcpListener) -> bool {
    true
}

/// Whether somebody waits to be accepted.
#[cfg(unix)]
fn is_awaited(listener: &TcpListener) -> bool {
    let mut listener = [PollFd::new(listener, PollFlags::IN)];
    let now = Timespec::default();
    poll(&mut listener, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Whether no more files may be open, or there is no memory for one.
#[cfg(unix)]
fn is_full(error: &io::Error) -> bool {
    let full = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| full.contains(&errno))
}

/// Whether no more files may be open, or there is no memory for one.
#[cfg(not(unix))]
fn is_full(error: &io::Error) -> bool {
    !is_of_client(error)
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

/// Answers the requests of one connection.
async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    place: Place,
    bounds: Bounds,
) {
    // Answers are written as a whole.
    let _set = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    let answered = service_fn(|request: Request<Incoming>| {
        place.connections.is_used(place.number, Step::Asked);
        let mut request = request.map(|body| Body::new(Heard::new(body, &place)));
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = service.call(request);
        let (place, most) = (&place, bounds.connections);
        async move {
            let mut response: Response = answer.await?;
            let kind = response.headers().get(CONTENT_TYPE);
            let tells = kind.is_some_and(|kind| kind == "text/event-stream");
            let answered = Step::Answered { tells };
            place.connections.is_used(place.number, answered);
            if place.connections.are_many(most) {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let stream = TokioIo::new(Patient::new(stream, bounds.unread));
    // What a client does wrong, or that it has gone, interests nobody.
    let _ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .serve_connection(stream, answered)
        .await;
}

/// A stream that fails when what is written is not taken for some time.
#[derive(Debug)]
struct Patient<S> {
    stream: S,
    most: Duration,
    /// While something waits to be written.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(stream: S, most: Duration) -> Self {
        Self {
            stream,
            most,
            until: None,
        }
    }

    fn bounded<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let most = self.most;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(most)));
        ready!(until.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.bounded(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
