//! Clients that are slow, and many.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::routing::any;
use lockapi::memory::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Bounds, Patient, serve};
use crate::web::{WebOptions, service};

/// Less than what connections may take unless they are bounded.
const PATIENCE: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_hours(1);
const BOUNDS: Bounds = Bounds {
    head: NEVER,
    unread: NEVER,
    connections: 40,
};
const HALF: &str = "GET /queues HTTP/1.1\r\nhost: localh";

struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Server {
    async fn new(bounds: Bounds) -> Self {
        let backend = Database::new().connect().await.unwrap();
        Self::of(service(backend, WebOptions::new()), bounds).await
    }

    async fn of(router: Router, bounds: Bounds) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async { stopped.await.unwrap_or_default() };
        let task = tokio::spawn(serve(listener, router, bounds, stopped));
        Self {
            address,
            task,
            stop,
        }
    }

    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn ask(&self, path: &str) -> TcpStream {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
            .await
    }
}

/// Reads until there are these words.
async fn reads(stream: &mut TcpStream, words: &str) -> String {
    let mut text = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&text).contains(words) {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0, "closed after {}", String::from_utf8_lossy(&text));
            text.extend(&buffer[..read]);
        }
    };
    timeout(PATIENCE, read).await.expect("in time");
    String::from_utf8(text).unwrap()
}

/// Waits until the server has closed it, without a word.
async fn is_closed(stream: &mut TcpStream) {
    let mut text = Vec::new();
    // One that is reset is closed as well.
    let read = timeout(PATIENCE, stream.read_to_end(&mut text)).await;
    let _ended = read.expect("closed in time");
    assert_eq!(String::from_utf8_lossy(&text), "");
}

#[tokio::test]
async fn half_a_head_is_not_waited_for() {
    let head = Duration::from_millis(200);
    let server = Server::new(Bounds { head, ..BOUNDS }).await;
    let mut slow = Vec::new();
    for _ in 0..30 {
        slow.push(server.send(HALF).await);
    }
    let mut idle = server.ask("/queues").await;
    reads(&mut idle, "</html>").await;
    slow.push(idle);
    for stream in &mut slow {
        is_closed(stream).await;
    }
}

/// However many there are, and however long each may take.
#[tokio::test]
async fn many_that_are_slow_keep_nobody_out() {
    let server = Server::new(BOUNDS).await;
    let mut changes = server.ask("/live?screen=queues").await;
    reads(&mut changes, "text/event-stream").await;
    let mut slow = Vec::new();
    for _ in 0..100 {
        slow.push(server.send(HALF).await);
    }
    let login = "POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\
                 content-type: application/x-www-form-urlencoded\r\n\r\ntoken=";
    for _ in 0..100 {
        slow.push(server.send(login).await);
    }
    for _ in 0..3 {
        let mut asked = server.ask("/queues").await;
        let answer = reads(&mut asked, "</html>").await;
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        is_closed(&mut asked).await;
    }
    for stream in &mut slow[..150] {
        is_closed(stream).await;
    }
    // Who was let in before stays.
    reads(&mut changes, "<h1>Queues</h1>").await;
}

/// A router whose answers wait until they are let go.
struct Held {
    router: Router,
    /// One for each head that has come.
    asked: mpsc::UnboundedReceiver<()>,
    /// One for each request that has come as a whole.
    heard: mpsc::UnboundedReceiver<()>,
    go: watch::Sender<bool>,
}

impl Held {
    fn new() -> Self {
        let (told, asked) = mpsc::unbounded_channel();
        let (told_all, heard) = mpsc::unbounded_channel();
        let (go, gone) = watch::channel(false);
        let answer = async move |body: Body| {
            let mut gone = gone.clone();
            told.send(()).unwrap();
            // One that is closed fails.
            let _read = to_bytes(body, 1000).await;
            told_all.send(()).unwrap();
            gone.wait_for(|go| *go).await.unwrap();
            "answered"
        };
        let router = Router::new().route("/", any(answer));
        let router = router.route("/now", any(async || "at once"));
        Self {
            router,
            asked,
            heard,
            go,
        }
    }
}

const FORM: &str = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\na slow body";

/// An action may be half done, so its client is told what came of it, however many connect meanwhile, and however far
/// these come with what they ask.
#[tokio::test]
async fn who_is_being_answered_is_closed_last() {
    let mut held = Held::new();
    let server = Server::of(held.router, BOUNDS).await;
    let whole = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nform";
    let mut asked = vec![server.ask("/").await, server.send(whole).await];
    for _ in &asked {
        held.heard.recv().await.unwrap();
        held.asked.recv().await.unwrap();
    }
    let mut idle = server.ask("/now").await;
    reads(&mut idle, "at once").await;
    let mut slow = vec![idle];
    for _ in 0..100 {
        slow.push(server.send(FORM).await);
        timeout(PATIENCE, held.asked.recv()).await.unwrap().unwrap();
    }
    for _ in 0..100 {
        slow.push(server.send(HALF).await);
    }
    for stream in &mut slow[..150] {
        is_closed(stream).await;
    }
    held.go.send(true).unwrap();
    for stream in &mut asked {
        reads(stream, "answered").await;
    }
}

/// So that nobody is kept out even then.
#[tokio::test]
async fn of_many_that_are_being_answered_the_first_is_closed() {
    let mut held = Held::new();
    let server = Server::of(held.router, BOUNDS).await;
    let mut asked = Vec::new();
    for _ in 0..BOUNDS.connections + 10 {
        asked.push(server.ask("/").await);
        timeout(PATIENCE, held.heard.recv()).await.unwrap().unwrap();
    }
    for stream in &mut asked[..10] {
        is_closed(stream).await;
    }
    held.go.send(true).unwrap();
    for stream in &mut asked[10..] {
        reads(stream, "answered").await;
    }
}

#[tokio::test]
async fn changes_are_told_beyond_the_limits_of_requests() {
    let bounds = Bounds {
        head: Duration::from_millis(50),
        unread: Duration::from_millis(50),
        connections: 40,
    };
    let server = Server::new(bounds).await;
    let mut changes = server.ask("/live?screen=queues").await;
    reads(&mut changes, "<h1>Queues</h1>").await;
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let (ours, theirs) = tokio::io::duplex(64);
    let mut patient = Patient::new(ours, Duration::from_millis(50));
    let failed = timeout(PATIENCE, patient.write_all(&[0; 1000])).await;
    let failed = failed.expect("in time").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::TimedOut);
    drop(theirs);
}

#[tokio::test]
async fn an_answer_that_is_read_slowly_arrives() {
    let (ours, mut theirs) = tokio::io::duplex(64);
    let mut patient = Patient::new(ours, PATIENCE);
    let written = tokio::spawn(async move { patient.write_all(&[0; 1000]).await });
    let mut read = [0; 1000];
    for part in read.chunks_mut(10) {
        theirs.read_exact(part).await.unwrap();
    }
    written.await.unwrap().unwrap();
}

#[tokio::test]
async fn it_stops_at_once() {
    let server = Server::new(BOUNDS).await;
    let mut changes = server.ask("/live?screen=queues").await;
    reads(&mut changes, "text/event-stream").await;
    let slow = server.send(HALF).await;
    let Server { task, stop, .. } = server;
    stop.send(()).unwrap();
    timeout(PATIENCE, task).await.expect("in time").unwrap();
    for mut stream in [changes, slow] {
        is_closed(&mut stream).await;
    }
}
