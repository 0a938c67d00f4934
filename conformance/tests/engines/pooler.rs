//! A transaction-pooling proxy that carries the settings of a client from session to session, as `PgDog` does and
//! as others do for some settings.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
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
}

/// Shares a few sessions among its clients.
pub(crate) struct Pooler<C: Connector> {
    real: C,
    shared: Arc<Shared<C::Connection>>,
}

struct Shared<N> {
    turns: Turns,
    /// How many sessions may still be opened.
    room: Mutex<usize>,
    idle: Mutex<VecDeque<N>>,
}

impl<N> Shared<N> {
    fn idle(&self) -> Option<N> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        match self.turns {
            Turns::LastUsed => idle.pop_back(),
            Turns::RoundRobin => idle.pop_front(),
        }
    }

    fn give_back(&self, session: N) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back(session);
    }

    fn may_open(&self) -> bool {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let open = *room > 0;
        *room -= usize::from(open);
        open
    }
}

impl<C: Connector> Pooler<C> {
    pub(crate) fn new(real: C, sessions: usize, turns: Turns) -> Self {
        let shared = Shared {
            turns,
            room: Mutex::new(sessions),
            idle: Mutex::default(),
        };
        Self {
            real,
            shared: Arc::new(shared),
        }
    }
}

impl<C: Connector> Connector for Pooler<C> {
    type Connection = Client<C::Connection>;
    type Listener = C::Listener;

    async fn connect(&self, _: Mode) -> Result<Self::Connection, Failure> {
        // All sessions are there from the start, so that they can take turns.
        while self.shared.may_open() {
            let session = self.real.connect(Mode::Proxied).await?;
            self.shared.give_back(session);
        }
        Ok(Client {
            shared: Arc::clone(&self.shared),
            session: None,
            marker: String::new(),
        })
    }

    async fn listener(&self) -> Result<Self::Listener, Failure> {
        self.real.listener().await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.real.spawn(name, task);
    }
}

/// A connection of a client, which has a session while it is in a transaction.
pub(crate) struct Client<N> {
    shared: Arc<Shared<N>>,
    session: Option<N>,
    /// The setting that goes with the client.
    marker: String,
}

impl<N: Connection> Client<N> {
    async fn session(&mut self) -> &mut N {
        while self.session.is_none() {
            self.session = self.shared.idle();
            if self.session.is_none() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        self.session.as_mut().expect("a session")
    }
}

impl<N: Connection> Connection for Client<N> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let mut rows = self.session().await.run(call).await?;
        if call.name() == Marker::STATEMENT.name {
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
        let done = self.session().await.script(script).await;
        if matches!(script, Script::Commit | Script::Rollback)
            && let Some(session) = self.session.take()
        {
            self.shared.give_back(session);
        }
        done
    }
}
