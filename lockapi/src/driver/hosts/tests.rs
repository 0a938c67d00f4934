//! Hosts that never answer, standbys, and two primaries.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::blocking::SLOW;
use super::*;
use crate::blocking::block_on;
use crate::driver::{BlockingConnection, BlockingConnector, BlockingListener, Inline};

/// What a host of these tests is, on either kind of driver.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Primary,
    Standby,
    Refuses,
    /// Answers when it is another again.
    Silent,
    /// Answers no attempt of now, whatever it is later.
    Lost,
}

use Role::{Lost, Primary, Refuses, Silent, Standby};

struct Fake {
    number: usize,
    role: Arc<Mutex<Role>>,
    /// The threads of the attempts.
    attempts: Arc<Mutex<Vec<thread::ThreadId>>>,
    dropped: Sender<(usize, thread::ThreadId)>,
}

struct Session {
    number: usize,
    writes: bool,
    /// Whether what it runs has to be in a transaction.
    proxied: bool,
    begun: bool,
    dropped: Sender<(usize, thread::ThreadId)>,
}

impl Fake {
    fn session(&self, mode: Mode) -> std::result::Result<Option<Session>, Failure> {
        self.attempts.lock().unwrap().push(thread::current().id());
        let role = *self.role.lock().unwrap();
        match role {
            Silent | Lost => Ok(None),
            Refuses => Err(Failure::connect(None, format!("{} refuses", self.number))),
            Primary | Standby => Ok(Some(Session {
                number: self.number,
                writes: role == Primary,
                proxied: mode == Mode::Proxied,
                begun: false,
                dropped: self.dropped.clone(),
            })),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A test that is over does not look.
        let _over = self.dropped.send((self.number, thread::current().id()));
    }
}

impl Connector for Fake {
    type Connection = Inline<Session>;
    type Listener = Inline<Session>;

    async fn connect(&self, mode: Mode) -> std::result::Result<Inline<Session>, Failure> {
        match self.session(mode)? {
            Some(session) => Ok(Inline(session)),
            None => std::future::pending().await,
        }
    }

    async fn listener(&self) -> std::result::Result<Inline<Session>, Failure> {
        Connector::connect(self, Mode::Direct).await
    }

    fn spawn(&self, _: &'static str, task: BackgroundTask) {
        thread::spawn(move || block_on(task));
    }
}

impl Listener for Inline<Session> {
    async fn next(&mut self) -> std::result::Result<String, Failure> {
        std::future::pending().await
    }
}

impl BlockingConnector for Fake {
    type Connection = Session;

    fn connect(&self, mode: Mode) -> std::result::Result<Session, Failure> {
        loop {
            if let Some(session) = self.session(mode)? {
                return Ok(session);
            }
            let now = || *self.role.lock().unwrap();
            let until = if now() == Lost { Lost } else { Silent };
            while now() == until || (until == Lost && now() != Refuses) {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl BlockingConnection for Session {
    fn run(&mut self, _: &'static Statement, _: Vec<Value>) -> std::result::Result<Rows, Failure> {
        if self.proxied && !self.begun {
            return Err(Failure::refused(None, "not in a transaction"));
        }
        Ok(vec![Row(vec![Value::Bool(self.writes)])])
    }

    fn script(&mut self, script: Script) -> std::result::Result<(), Failure> {
        self.begun = matches!(script, Script::Begin(_));
        Ok(())
    }
}

impl BlockingListener for Session {
    fn next(&mut self, _: Duration) -> std::result::Result<Option<String>, Failure> {
        Ok(None)
    }
}

struct Network {
    hosts: Hosts<Fake>,
    roles: Vec<Arc<Mutex<Role>>>,
    attempts: Vec<Arc<Mutex<Vec<thread::ThreadId>>>>,
    drops: std::sync::mpsc::Receiver<(usize, thread::ThreadId)>,
}

fn network(roles: &[Role]) -> Network {
    let (dropped, drops) = channel();
    let fake = |(number, role): (usize, &Role)| Fake {
        number,
        role: Arc::new(Mutex::new(*role)),
        attempts: Arc::default(),
        dropped: dropped.clone(),
    };
    let fakes: Vec<_> = roles.iter().enumerate().map(fake).collect();
    Network {
        roles: fakes.iter().map(|it| Arc::clone(&it.role)).collect(),
        attempts: fakes.iter().map(|it| Arc::clone(&it.attempts)).collect(),
        hosts: Hosts::new(fakes).unwrap(),
        drops,
    }
}

type Connected = std::result::Result<(usize, Box<dyn FnOnce()>), String>;

impl Network {
    /// The number of the host, and what tells that it was superseded.
    fn connect_async(&self) -> Connected {
        let connected = block_on(Connector::connect(&self.hosts, Mode::Direct));
        let connection = connected.map_err(|failure| failure.source.to_string())?;
        let number = connection.connection.0.number;
        Ok((
            number,
            Box::new(move || Connection::superseded(&connection)),
        ))
    }

    fn connect_blocking(&self) -> Connected {
        let connected = BlockingConnector::connect(&self.hosts, Mode::Direct);
        let connection = connected.map_err(|failure| failure.source.to_string())?;
        let number = connection.connection.number;
        Ok((
            number,
            Box::new(move || BlockingConnection::superseded(&connection)),
        ))
    }

    fn set(&self, host: usize, role: Role) {
        *self.roles[host].lock().unwrap() = role;
    }

    fn attempts(&self, host: usize) -> usize {
        self.attempts[host].lock().unwrap().len()
    }
}

impl Drop for Network {
    /// Ends the threads of hosts that are silent.
    fn drop(&mut self) {
        for host in 0..self.roles.len() {
            self.set(host, Refuses);
        }
    }
}

/// On a driver that is async, and on one that blocks.
fn on_both(test: impl Fn(&dyn Fn(&Network) -> Connected)) {
    test(&Network::connect_async);
    test(&Network::connect_blocking);
}

fn number(connected: Connected) -> std::result::Result<usize, String> {
    connected.map(|(number, _)| number)
}

/// Outside of a transaction a proxy may give each message to another session.
#[test]
fn a_proxy_is_asked_in_a_transaction() {
    let network = network(&[Standby, Primary]);
    let connected = block_on(Connector::connect(&network.hosts, Mode::Proxied));
    assert_eq!(connected.ok().map(|it| it.connection.0.number), Some(1));
    let connected = BlockingConnector::connect(&network.hosts, Mode::Proxied);
    assert_eq!(connected.ok().map(|it| it.connection.number), Some(1));
}

#[test]
fn the_primary_is_taken_whatever_the_others_do() {
    on_both(|connect| {
        let hosts = network(&[Silent, Standby, Refuses, Primary]);
        let began = Instant::now();
        assert_eq!(number(connect(&hosts)), Ok(3));
        assert!(began.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn without_a_primary_the_last_failure_is_told() {
    on_both(|connect| {
        let told = number(connect(&network(&[Standby, Refuses]))).unwrap_err();
        assert!(
            told.contains("none of the 2 hosts") && told.contains("1 refuses"),
            "{told}"
        );
    });
    let hosts = network(&[Silent, Refuses]);
    let began = Instant::now();
    let told = number(hosts.connect_blocking()).unwrap_err();
    assert!(told.contains("1 refuses"), "{told}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_superseded_primary_is_left_out_while_another_is_one() {
    on_both(|connect| {
        let hosts = network(&[Primary, Standby]);
        let (old, superseded) = connect(&hosts).unwrap();
        assert_eq!(old, 0);
        superseded();
        hosts.set(1, Primary);
        for _ in 0..10 {
            assert_eq!(number(connect(&hosts)), Ok(1));
        }
        hosts.set(1, Refuses);
        assert_eq!(number(connect(&hosts)), Ok(0), "there is no other");
    });
}

#[test]
fn who_follows_as_a_standby_may_become_the_primary_again() {
    on_both(|connect| {
        let hosts = network(&[Primary, Standby]);
        let (_, superseded) = connect(&hosts).unwrap();
        superseded();
        hosts.set(0, Standby);
        number(connect(&hosts)).unwrap_err();
        hosts.set(0, Primary);
        hosts.set(1, Primary);
        let taken = (0..1000).any(|_| number(connect(&hosts)) == Ok(0));
        assert!(taken, "it is still left out");
    });
}

#[test]
fn a_host_that_hangs_is_not_tried_again_until_it_answers() {
    let hosts = network(&[Silent, Primary]);
    assert_eq!(number(hosts.connect_blocking()), Ok(1));
    let began = Instant::now();
    while hosts.attempts(0) == 0 {
        assert!(began.elapsed() < Duration::from_secs(10));
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(1100));
    for _ in 0..20 {
        assert_eq!(number(hosts.connect_blocking()), Ok(1));
    }
    assert_eq!(hosts.attempts(0), 1);
    hosts.set(1, Refuses);
    let told = number(hosts.connect_blocking()).unwrap_err();
    assert!(told.contains("none of the 2 hosts"), "{told}");
    hosts.set(0, Primary);
    let began = Instant::now();
    while number(hosts.connect_blocking()) != Ok(0) {
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_primary_that_is_slow_is_taken_by_each_task() {
    let hosts = network(&[Silent, Standby]);
    let each = &hosts.hosts;
    let taken = || {
        let connected = BlockingConnector::connect(each, Mode::Direct);
        connected.map(|it| it.connection.number).ok()
    };
    thread::scope(|scope| {
        let first = scope.spawn(taken);
        thread::sleep(Duration::from_millis(1300));
        // It asks the others first, for a second.
        let second = scope.spawn(taken);
        thread::sleep(Duration::from_millis(1300));
        hosts.set(0, Primary);
        assert_eq!(first.join().unwrap(), Some(0));
        assert_eq!(second.join().unwrap(), Some(0));
    });
}

#[test]
fn an_attempt_that_hangs_keeps_nobody_from_a_host_that_answers() {
    let hosts = network(&[Lost, Standby]);
    number(hosts.connect_blocking()).unwrap_err();
    hosts.set(0, Primary);
    assert_eq!(number(hosts.connect_blocking()), Ok(0));
    let began = Instant::now();
    assert_eq!(number(hosts.connect_blocking()), Ok(0));
    assert!(began.elapsed() < SLOW, "it has answered since");
}

#[test]
fn who_is_late_is_dropped_on_the_thread_of_its_attempt() {
    let hosts = network(&[Silent, Primary]);
    let (_, keep) = hosts.connect_blocking().unwrap();
    hosts.set(0, Primary);
    let dropped = hosts.drops.recv_timeout(Duration::from_secs(10));
    let (late, thread) = dropped.unwrap();
    assert_eq!(late, 0);
    assert_ne!(thread, thread::current().id());
    drop(keep);
}

#[test]
fn one_host_is_tried_on_the_thread_of_the_task() {
    let hosts = network(&[Standby]);
    let (_, connection) = hosts.connect_blocking().unwrap();
    assert_eq!(*hosts.attempts[0].lock().unwrap(), [thread::current().id()]);
    drop(connection);
    assert_eq!(number(hosts.connect_async()), Ok(0), "the engine asks it");
}
