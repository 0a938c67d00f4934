//! Cancelling statements at the server whose callers are gone.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::driver::Driver;
use super::timer::Timer;
use super::watch::Watch;
use crate::driver::first_statement::perform_first;
use crate::driver::{Mode, Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sync::{Mutex, MutexGuard};

/// The maximum number of sessions that wait to be cancelled. The others end by their
/// `statement_timeout`.
const MOST: usize = 64;

/// A process of the server; a number is used again, but not with the same start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its number.
    pub pid: i64,
    /// When its session began, in microseconds since 1970.
    pub started: i64,
}

/// Cancels the statements of sessions whose connections were closed.
pub(super) struct Cancels {
    driver: Driver,
    timer: Timer,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    wanted: Vec<Process>,
    running: bool,
}

impl Cancels {
    pub(super) fn new(driver: Driver, timer: Timer, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            driver,
            timer,
            timeout,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it in the background, on a connection that is opened for it.
    pub(super) fn cancel(self: Arc<Self>, process: Process) {
        let mut state = self.lock();
        if state.wanted.len() < MOST {
            state.wanted.push(process);
        }
        let starts = !std::mem::replace(&mut state.running, true);
        drop(state);
        if starts {
            let running = Running(Arc::clone(&self));
            let task = async move { running.0.run().await };
            self.driver.spawn("lockapi-cancel", Box::pin(task));
        }
    }

    async fn run(&self) {
        let watch = Watch::new(self.timer.clone(), self.timeout);
        loop {
            let wanted = {
                let mut state = self.lock();
                state.running = !state.wanted.is_empty();
                std::mem::take(&mut state.wanted)
            };
            if wanted.is_empty() {
                return;
            }
            let cancelling = async {
                let mut connection = self.driver.connect(Mode::Direct).await?;
                perform_first(&mut connection, Cancelled(wanted)).await
            };
            // Where the server cannot be reached, it has its own timeout.
            let _unreachable = watch.bound(cancelling).await;
        }
    }
}

/// Lets the next one start another task when the runtime drops this one.
struct Running(Arc<Cancels>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running = false;
    }
}

/// Cancels what these processes run; a batch of one.
#[derive(Clone, Debug)]
pub struct Cancelled(pub Vec<Process>);

impl Operation for Cancelled {
    /// How many ran something.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "engine.cancel",
        sql: include_str!("cancel.sql"),
        params: &[Type::Ints, Type::Ints],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |field: fn(&Process) -> i64| {
            let processes = batch.iter().take(1).flat_map(|one| &one.0);
            Value::Ints(processes.map(field).collect())
        };
        vec![of(|it| it.pid), of(|it| it.started)]
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        // A call in memory does not outlive its caller.
        Some(vec![Row(vec![Value::Int(0)])])
    }
}
