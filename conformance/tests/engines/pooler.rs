//! A transaction-pooling proxy that carries the settings of a client from session to session, as `PgDog` does and
//! as others do for some settings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockapi::Failure;
use lockapi::driver::{BackgroundTask, Call, Connection, Connector, Mode, Rows, Script, Value};
use lockapi::suite::driver::Operation;
use lockapi::suite::engine::Marker;

/// Which session is used next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    LastUsed,
    RoundRobin,
    /// Drawn, as it is beside many others that take turns; each time the same from this seed on.
    Drawn(u64),
}

/// Shares a few sessions among its clients.
pub(crate) struct Pooler<C: Connector>(Arc<Shared<C>>);

struct Shared<C: Connector> {
    real: C,
    turns: Turns,
    /// Each client keeps its session.
    exclusive: AtomicBool,
    /// How many sessions may still be opened.
    room: Mutex<usize>,
    idle: Mutex<VecDeque<C::Connection>>,
    random: Mutex<fastrand::Rng>,
}

impl<C: Connector> Shared<C> {
    fn idle(&self) -> MutexGuard<'_, VecDeque<C::Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self) -> MutexGuard<'_, usize> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<C::Connection> {
        let mut idle = self.idle();
        match self.turns {
            Turns::LastUsed => idle.pop_back(),
            Turns::RoundRobin => idle.pop_front(),
            Turns::Drawn(_) => {
                let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
                let drawn = random.usize(..idle.len().max(1));
                idle.remove(drawn)
            }
        }
    }

    /// Opens as many sessions as may be open, so that they can take turns.
    async fn open(&self) -> Result<(), Failure> {
        loop {
            let open = {
                let mut room = self.room();
                let open = *room > 0;
                *room -= usize::from(open);
                open
            };
            if !open {
                return Ok(());
            }
            let session = self.real.connect(Mode::Proxied).await?;
            self.idle().push_back(session);
        }
    }
}

impl<C: Connector> Pooler<C> {
    pub(crate) fn new(real: C, sessions: usize, turns: Turns) -> Self {
        let seed = match turns {
            Turns::Drawn(seed) => seed,
            Turns::LastUsed | Turns::RoundRobin => 0,
        };
        Self(Arc::new(Shared {
            real,
            turns,
            exclusive: AtomicBool::new(false),
            room: Mutex::new(sessions),
            idle: Mutex::default(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
        }))
    }

    /// Whether each client keeps its session from now on.
    pub(crate) fn set_exclusive(&self, exclusive: bool) {
        self.0.exclusive.store(exclusive, Ordering::SeqCst);
    }

    /// The same sessions, for another program.
    pub(crate) fn join(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: Connector> Connector for Pooler<C> {
    type Connection = Client<C>;
    type Listener = C::Listener;

    async fn connect(&self, _: Mode) -> Result<Self::Connection, Failure> {
        self.0.open().await?;
        Ok(Client {
            shared: Arc::clone(&self.0),
            session: None,
            in_transaction: false,
            marker: String::new(),
        })
    }

    async fn listener(&self) -> Result<Self::Listener, Failure> {
        self.0.real.listener().await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.0.real.spawn(name, task);
    }
}

/// A connection of a client, which has a session while it is in a transaction.
pub(crate) struct Client<C: Connector> {
    shared: Arc<Shared<C>>,
    session: Option<C::Connection>,
    in_transaction: bool,
    /// The setting that goes with the client.
    marker: String,
}

impl<C: Connector> Client<C> {
    async fn session(&mut self) -> Result<&mut C::Connection, Failure> {
        loop {
            if self.session.is_none() {
                self.session = self.shared.next();
            }
            if self.session.is_some() {
                break;
            }
            // For one whose client left in the middle of a transaction.
            self.shared.open().await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(self.session.as_mut().expect("a session"))
    }
}

impl<C: Connector> Client<C> {
    /// Closes the session.
    fn close(&mut self) {
        if self.session.take().is_some() {
            *self.shared.room() += 1;
        }
    }

    /// After a statement.
    fn leave<T>(&mut self, outcome: &Result<T, Failure>) {
        if matches!(outcome, Err(failure) if failure.broken) {
            self.close();
        } else if !self.in_transaction
            && !self.shared.exclusive.load(Ordering::SeqCst)
            && let Some(session) = self.session.take()
        {
            self.shared.idle().push_back(session);
        }
    }
}

impl<C: Connector> Drop for Client<C> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<C: Connector> Connection for Client<C> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let outcome = self.session().await?.run(call).await;
        self.leave(&outcome);
        let mut rows = outcome?;
        // While each has its own session there is nothing to carry along.
        let exclusive = self.shared.exclusive.load(Ordering::SeqCst);
        if !exclusive && call.name() == Marker::STATEMENT.name {
            if let Some(Value::Text(marker)) = call.query().1.first() {
                match marker.as_str() {
                    "" => {}
                    "-" => self.marker.clear(),
                    marker => marker.clone_into(&mut self.marker),
                }
            }
            for row in &mut rows {
                row.0[0] = Value::Text(self.marker.clone());
            }
        }
        Ok(rows)
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        let done = self.session().await?.script(script).await;
        match script {
            Script::Begin(_) => self.in_transaction = true,
            Script::Commit | Script::Rollback => self.in_transaction = false,
            _ => {}
        }
        self.leave(&done);
        done
    }
}
