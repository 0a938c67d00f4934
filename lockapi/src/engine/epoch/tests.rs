//! A server that was replaced, and came back.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::session_settings;
use super::*;
use crate::blocking::block_on;
use crate::driver::hosts::IsPrimary;
use crate::driver::{
    BlockingConnection, BlockingConnector, BlockingListener, Hosts, Mode, Script, Threaded,
};
use crate::engine::connection::Connections;
use crate::engine::driver::Driver;
use crate::engine::{Clock, Timer};

/// A primary in an epoch.
struct Server {
    epoch: i64,
    up: Arc<AtomicBool>,
}

struct Session(i64);

impl BlockingConnector for Server {
    type Connection = Session;

    fn connect(&self, _: Mode) -> Result<Session, Failure> {
        if self.up.load(Ordering::SeqCst) {
            return Ok(Session(self.epoch));
        }
        Err(Failure::connect(None, "it is down"))
    }
}

impl BlockingConnection for Session {
    fn run(&mut self, statement: &'static Statement, _: Vec<Value>) -> Result<Rows, Failure> {
        let value = match statement.columns {
            [Type::Bool] => Value::Bool(true),
            _ => Value::Int(self.0),
        };
        Ok(vec![Row(vec![value])])
    }

    fn script(&mut self, _: Script) -> Result<(), Failure> {
        Ok(())
    }
}

impl BlockingListener for Session {
    fn next(&mut self, _: Duration) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}

#[test]
fn among_hosts_a_server_that_is_refused_is_left_out() {
    let (old, new) = (Arc::default(), Arc::default());
    let server = |epoch, up: &Arc<AtomicBool>| Server {
        epoch,
        up: Arc::clone(up),
    };
    let hosts = Hosts::new(vec![server(1, &old), server(2, &new)]).unwrap();
    let driver = Driver::new(Threaded::new(hosts));
    let epochs = Epochs::default();
    let enter = || {
        let entering = async {
            let mut connection = driver.connect(Mode::Direct).await?;
            let state = ServerState {
                server: session_settings::ServerKind::Primary,
                process: None,
                epochs: true,
                unprivileged: false,
            };
            epochs.enter(&mut connection, state).await
        };
        block_on(entering).map_err(|failure| failure.source.to_string())
    };
    old.store(true, Ordering::SeqCst);
    assert_eq!(enter(), Ok(Some(1)));
    old.store(false, Ordering::SeqCst);
    new.store(true, Ordering::SeqCst);
    let mut advanced = std::pin::pin!(epochs.advanced.notified());
    assert!(!advanced.as_mut().enable());
    assert_eq!(enter(), Ok(Some(2)));
    assert!(advanced.enable(), "who listens to the old one is told");
    new.store(false, Ordering::SeqCst);
    old.store(true, Ordering::SeqCst);
    assert!(enter().unwrap_err().contains("earlier epoch"));
    new.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        assert_eq!(enter(), Ok(Some(2)));
    }
}

/// A session behind a proxy: the epoch has begun once the transaction that entered it is committed.
#[derive(Default)]
struct Pooled {
    begun: bool,
    begins: bool,
    asked: usize,
    fails: Option<Fails>,
}

/// What fails next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Work,
    Commit,
}

struct Pool(Arc<Mutex<Pooled>>);

impl BlockingConnector for Pool {
    type Connection = Pool;

    fn connect(&self, _: Mode) -> Result<Pool, Failure> {
        Ok(Pool(Arc::clone(&self.0)))
    }
}

impl BlockingConnection for Pool {
    fn run(&mut self, statement: &'static Statement, _: Vec<Value>) -> Result<Rows, Failure> {
        let mut session = self.0.lock().unwrap();
        let row = match statement.name {
            "engine.session_settings" => {
                let (no, yes) = (Value::Bool(false), Value::Bool(true));
                let row = [no.clone(), Value::Int(0), Value::Int(7), Value::Int(1)];
                row.into_iter().chain([yes, no.clone(), no]).collect()
            }
            "engine.epoch" => {
                session.asked += 1;
                session.begins = !session.begun;
                vec![Value::Int(5)]
            }
            _ => {
                assert!(session.begun, "work in an epoch that may be undone");
                if session.fails.take_if(|it| *it == Fails::Work).is_some() {
                    let code = Some("23505".to_owned());
                    return Err(Failure::statement(code, false, "refused"));
                }
                vec![Value::Bool(true)]
            }
        };
        Ok(vec![Row(row)])
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        let mut session = self.0.lock().unwrap();
        if script == Script::Commit && session.fails.take_if(|it| *it == Fails::Commit).is_some() {
            session.begins = false;
            return Err(Failure::statement(None, true, "reset by peer"));
        }
        session.begun |= session.begins && script == Script::Commit;
        session.begins = false;
        Ok(())
    }
}

impl BlockingListener for Pool {
    fn next(&mut self, _: Duration) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}

#[test]
fn behind_a_proxy_an_epoch_is_committed_before_the_work() {
    let session = Arc::new(Mutex::new(Pooled::default()));
    let driver = Driver::new(Threaded::new(Pool(Arc::clone(&session))));
    let timer = Timer::start(&Clock::real()).unwrap();
    let limit = Duration::from_secs(5);
    let connections = Connections::new(driver, timer, Mode::Proxied, limit);
    let perform = |fails: Option<Fails>| {
        session.lock().unwrap().fails = fails;
        block_on(async {
            let watch = connections.watch();
            let mut connection = connections.open(&watch, Duration::ZERO).await?;
            connection.perform(&[IsPrimary]).await
        })
    };
    // Whether it was committed is not known: it is asked again.
    assert!(perform(Some(Fails::Commit)).is_err());
    assert!(!session.lock().unwrap().begun);
    // What is rolled back is the work alone.
    assert!(perform(Some(Fails::Work)).is_err());
    assert!(session.lock().unwrap().begun);
    assert_eq!(session.lock().unwrap().asked, 2);
    assert_eq!(perform(None).unwrap(), [true]);
    assert_eq!(session.lock().unwrap().asked, 2, "it is remembered");
}

#[cfg(shuttle)]
mod interleavings {
    use std::pin::pin;

    use super::*;
    use crate::driver::Inline;
    use crate::sync::{explore, thread};

    #[test]
    fn the_latest_stays_and_whoever_listens_is_told() {
        explore(|| {
            let epochs = Arc::new(Epochs::default());
            block_on(epochs.enter_again(&mut Inline(Session(1)))).unwrap();
            let mut advanced = pin!(epochs.advanced.notified());
            advanced.as_mut().enable();
            let entering = [3, 2].map(|number| {
                let epochs = Arc::clone(&epochs);
                thread::spawn(move || {
                    block_on(epochs.enter_again(&mut Inline(Session(number)))).is_ok()
                })
            });
            block_on(advanced);
            let [latest, _] = entering.map(|one| one.join().unwrap());
            assert!(latest);
            assert!(epochs.check(3).is_ok());
            assert!(epochs.check(2).is_err(), "another has taken over");
        });
    }
}
