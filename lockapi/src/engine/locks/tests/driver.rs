//! A driver over a database in memory whose statements tests delay, hang and cancel.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::MS;
use crate::backend::Backend;
use crate::blocking::block_on;
use crate::driver::{
    BackgroundTask, Call, Connection, Connector, Listener, Mode, Rows, Script, Value,
};
use crate::engine::Clock;
use crate::engine::{BackendOptions, Driver, ManualClock, start_with};
use crate::error::Failure;
use crate::memory::{Database, Session};

#[derive(Default)]
pub(super) struct Control {
    /// Time until a statement of a waiting session reaches the server.
    pub(super) latency: Mutex<HashMap<&'static str, Duration>>,
    /// Time that the server takes for it, in which a cancel request hits it.
    pub(super) execution: Mutex<HashMap<&'static str, Duration>>,
    /// Sessions that execute something, and those of them that were cancelled.
    pub(super) executing: Mutex<HashSet<i64>>,
    pub(super) cancelled: Mutex<HashSet<i64>>,
    pub(super) slow_close: AtomicBool,
    pub(super) hangs: AtomicBool,
    pub(super) cancel_pings: AtomicBool,
    pub(super) waiters_alive: AtomicUsize,
    pub(super) most_waiters: AtomicUsize,
    pub(super) manual: AtomicBool,
    pub(super) gate_shut: AtomicBool,
    pub(super) tasks: Mutex<Vec<BackgroundTask>>,
}

#[derive(Clone)]
pub(super) struct Probe(pub(super) Database, pub(super) Arc<Control>);

pub(super) struct OpenConnection {
    session: Session,
    control: Arc<Control>,
    process: i64,
}

pub(super) struct Alive(Arc<Control>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.waiters_alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connector for Probe {
    type Connection = OpenConnection;
    type Listener = OpenConnection;

    async fn connect(&self, mode: Mode) -> Result<OpenConnection, Failure> {
        if self.1.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(OpenConnection {
            session: Connector::connect(&self.0, mode).await?,
            control: Arc::clone(&self.1),
            process: 0,
        })
    }

    async fn listener(&self) -> Result<OpenConnection, Failure> {
        Connector::connect(self, Mode::Direct).await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        if name == "lockapi-locks" && self.1.manual.load(Ordering::SeqCst) {
            self.1.tasks.lock().unwrap().push(task);
            return;
        }
        if name == "lockapi-waiter" {
            let alive = self.1.waiters_alive.fetch_add(1, Ordering::SeqCst) + 1;
            self.1.most_waiters.fetch_max(alive, Ordering::SeqCst);
            let guard = Alive(Arc::clone(&self.1));
            return self.0.spawn(
                name,
                Box::pin(async move {
                    task.await;
                    drop(guard);
                }),
            );
        }
        self.0.spawn(name, task);
    }
}

impl Connection for OpenConnection {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let name = call.name();
        let of = |map: &Mutex<HashMap<&'static str, Duration>>| {
            map.lock().unwrap().get(name).copied().unwrap_or_default()
        };
        if name == "mutex.lock_request" {
            while self.control.gate_shut.load(Ordering::SeqCst) {
                let mut once = false;
                std::future::poll_fn(|_| {
                    if std::mem::replace(&mut once, true) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
            }
        }
        if name == "mutex.ping" && self.control.cancel_pings.swap(false, Ordering::SeqCst) {
            return Err(cancelled());
        }
        if self.process > 1 {
            std::thread::sleep(of(&self.control.latency));
            let execution = of(&self.control.execution);
            if !execution.is_zero() {
                self.control.executing.lock().unwrap().insert(self.process);
                let start = Instant::now();
                let mut hit = false;
                while start.elapsed() < execution && !hit {
                    std::thread::sleep(MS);
                    hit = self.control.cancelled.lock().unwrap().remove(&self.process);
                }
                self.control.executing.lock().unwrap().remove(&self.process);
                if hit {
                    return Err(cancelled());
                }
            }
        }
        if name == "mutex.interrupt"
            && let Some(Value::Ints(processes)) = call.query().1.get(1)
        {
            // pg_cancel_backend hits whatever the session runs.
            for process in processes {
                if self.control.executing.lock().unwrap().contains(process) {
                    self.control.cancelled.lock().unwrap().insert(*process);
                }
            }
        }
        let rows = self.session.run(call).await;
        if name == "mutex.mark_session"
            && let Ok(rows) = &rows
            && let Some(Value::Int(process)) = rows.first().and_then(|row| row.0.get(2))
        {
            self.process = *process;
        }
        rows
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.session.script(script).await
    }
}

pub(super) fn cancelled() -> Failure {
    Failure::statement(
        Some("57014".into()),
        false,
        "canceling statement due to user request",
    )
}

impl Listener for OpenConnection {
    async fn next(&mut self) -> Result<String, Failure> {
        self.session.next().await
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if self.process > 0 && self.control.slow_close.load(Ordering::SeqCst) {
            std::thread::sleep(MS * 500);
        }
    }
}

pub(super) fn connect(
    options: BackendOptions,
    clock: Option<&ManualClock>,
) -> (Arc<dyn Backend>, Database, Arc<Control>) {
    let database = clock.map_or_else(Database::new, Database::with_clock);
    let control = Arc::<Control>::default();
    let probe = Probe(database.clone(), Arc::clone(&control));
    let clock = clock.map_or_else(Clock::real, |clock| Clock::Manual(clock.clone()));
    let backend = block_on(start_with(
        "probe",
        Driver::new(probe),
        options.notes(false),
        clock,
    ))
    .unwrap();
    (backend, database, control)
}
