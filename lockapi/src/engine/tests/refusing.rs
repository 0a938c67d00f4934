//! A process whose server refuses one statement some times, on a clock that is moved by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Report;
use crate::driver::{BackgroundTask, Call, Connection, Connector, Mode, Rows, Script, Value};
use crate::engine::clock::{Clock, ManualClock, Time};
use crate::engine::connection::Connections;
use crate::engine::driver::Driver;
use crate::engine::timer::Timer;
use crate::error::Failure;
use crate::memory::{Database, Session};
use crate::sync::Mutex;

/// The statement, how often it is refused yet, and when and with what it was sent.
struct Statement {
    name: &'static str,
    refusals: usize,
    clock: ManualClock,
    sent: Vec<Sent>,
}

impl Statement {
    /// Whether the call is to be refused, which is noted if it is of the statement.
    fn refuses(&mut self, call: &Call<'_>) -> bool {
        if self.name != call.name() {
            return false;
        }
        let at = Clock::Manual(self.clock.clone()).now();
        let params = call.query().1;
        self.sent.push(Sent { at, params });
        let refuses = self.refusals > 0;
        self.refusals = self.refusals.saturating_sub(1);
        refuses
    }
}

#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) at: Time,
    pub(crate) params: Vec<Value>,
}

struct Refusing {
    database: Database,
    statement: Arc<Mutex<Statement>>,
}

struct RefusingSession {
    session: Session,
    statement: Arc<Mutex<Statement>>,
}

impl Connector for Refusing {
    type Connection = RefusingSession;
    type Listener = Session;

    async fn connect(&self, mode: Mode) -> Result<RefusingSession, Failure> {
        Ok(RefusingSession {
            session: Connector::connect(&self.database, mode).await?,
            statement: Arc::clone(&self.statement),
        })
    }

    async fn listener(&self) -> Result<Session, Failure> {
        self.database.listener().await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.database.spawn(name, task);
    }
}

impl Connection for RefusingSession {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let refused = self.statement.lock().unwrap().refuses(&call);
        if refused {
            let report = Report::new(Some("XX000".to_owned()), "refused by the test");
            return Err(Failure::reported(report));
        }
        self.session.run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.session.script(script).await
    }
}

pub(crate) struct Process {
    clock: ManualClock,
    connections: Arc<Connections>,
    statement: Arc<Mutex<Statement>>,
}

impl Process {
    /// It refuses this statement when it is told to.
    pub(crate) fn new(name: &'static str) -> Self {
        let clock = ManualClock::default();
        let statement = Arc::new(Mutex::new(Statement {
            name,
            refusals: 0,
            clock: clock.clone(),
            sent: Vec::new(),
        }));
        let driver = Driver::new(Refusing {
            database: Database::with_clock(&clock),
            statement: Arc::clone(&statement),
        });
        let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
        let connections = Connections::new(driver, timer, Mode::Direct, Duration::from_secs(5));
        Self {
            clock,
            connections: Arc::new(connections),
            statement,
        }
    }

    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    pub(crate) fn now(&self) -> Time {
        self.connections.timer.now()
    }

    /// Refuses the statement so often from now on.
    pub(crate) fn refuse(&self, times: usize) {
        self.statement.lock().unwrap().refusals = times;
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// What the statement was sent with, each time.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.statement.lock().unwrap().sent.clone()
    }

    /// Lets time pass until the statement has been sent so often.
    pub(crate) fn pass_until_sent(&self, times: usize) {
        eventually(|| {
            let sent = self.sent().len();
            if sent < times {
                self.pass(Duration::from_secs(1));
            }
            sent >= times
        });
        assert_eq!(self.sent().len(), times);
    }
}

/// Waits until it is so.
pub(crate) fn eventually(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "never");
        std::thread::sleep(Duration::from_millis(1));
    }
}
