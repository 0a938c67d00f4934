//! The driver: what a process has of the network.

use std::time::Duration;

use lockapi::Failure;
use lockapi::driver::{
    BackgroundTask, BoxFuture, Call, Connection, Connector, Library, Listener, Mode, Rows, Script,
    Transaction, Value,
};
use lockapi::suite::queue::Name;
use lockapi::suite::simulation::{Request, time_limit};
use tokio::sync::{mpsc, oneshot};

use crate::judges::Turn;
use crate::runtime::{ProgramId, Runtime};
use crate::server::{CheckIn, Message, Needs, RowKey, Server, Statement};

/// Connects a process with the server.
pub(crate) struct Network {
    pub(crate) runtime: Runtime,
    pub(crate) server: Server,
    pub(crate) program: ProgramId,
}

/// A connection of a process.
pub(crate) struct Client {
    server: Server,
    session: u64,
    notifications: Option<mpsc::UnboundedReceiver<String>>,
}

impl Connector for Network {
    type Connection = Client;
    type Listener = Client;

    const SERVER: bool = false;

    async fn connect(&self, _: Mode) -> Result<Client, Failure> {
        let session = self.server.connect(self.program).await?;
        Ok(Client {
            server: self.server.clone(),
            session,
            notifications: None,
        })
    }

    async fn listener(&self) -> Result<Client, Failure> {
        let mut client = Connector::connect(self, Mode::Direct).await?;
        client.notifications = client.server.listen(client.session);
        Ok(client)
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.runtime.spawn_boxed(self.program, name, task);
    }
}

/// The library of the programs.
pub(crate) struct Simulated;

impl Library for Simulated {
    type Outcome<'c, T: Send + 'c> = BoxFuture<'c, T>;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> BoxFuture<'c, T> {
        work
    }
}

impl Transaction<Simulated> for Client {
    type Connection<'c> = &'c mut Self;

    fn connection(&mut self) -> &mut Self {
        self
    }
}

impl Client {
    /// The number of its session.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&mut self) -> Result<(), Failure> {
        let answer = self.server.send(self.session, Message::Begin);
        self.answered(answer).await.map(drop)
    }

    /// Ends the transaction; answers whether it was committed.
    pub(crate) async fn end(&mut self, commits: bool) -> Result<bool, Failure> {
        let answer = self.server.send(self.session, Message::End { commits });
        let rows = self.answered(answer).await?;
        rows.into_iter()
            .next()
            .map_or(Ok(false), |mut row| row.bool(0))
    }

    async fn answered(
        &self,
        answer: oneshot::Receiver<Result<Rows, Failure>>,
    ) -> Result<Rows, Failure> {
        answer.await.unwrap_or_else(|_| {
            let reset = "connection reset by peer";
            Err(Failure::statement(None, true, reset))
        })
    }
}

/// What an admission is of.
fn turn(call: &Call<'_>) -> Option<Turn> {
    if call.name() != "queue.admit" {
        return None;
    }
    let mut params = call.query().1.into_iter();
    let (Value::Text(namespace), Value::Text(queue), Value::Int(groups)) =
        (params.next()?, params.next()?, params.next()?)
    else {
        return None;
    };
    let queue = Name { namespace, queue };
    Some(Turn { queue, groups })
}

/// For which rows a statement waits while somebody has locked them. Others skip such rows, or lock none.
fn needs(call: &Call<'_>) -> Needs {
    let name = call.name();
    let completes = [
        "queue.complete_and_claim",
        "queue.complete_and_claim_unlimited",
    ];
    let acks = ["queue.ack", "queue.ack_with_result"];
    if completes.contains(&name) || acks.contains(&name) {
        let mut params = call.query().1.into_iter();
        return match (params.next(), params.next()) {
            (Some(Value::Ints(ids)), Some(Value::Ints(tokens))) => Needs::Deliveries(ids, tokens),
            _ => Needs::Nothing,
        };
    }
    if [
        "lease.renew",
        "lease.release",
        "lease.check",
        "lease.abandon",
    ]
    .contains(&name)
    {
        return Needs::Leases(leases(call).unwrap_or_default());
    }
    if !name.starts_with("limit.") || matches!(name, "limit.level" | "limit.sweep") {
        return Needs::Nothing;
    }
    // The namespace comes first: one for all, or one for each.
    let mut params = call.query().1.into_iter();
    let keys = match (params.next(), params.next(), params.next()) {
        (Some(Value::Text(_)), Some(Value::Text(key)), _) => vec![key],
        (Some(Value::Texts(_)), Some(Value::Texts(keys)), _)
        | (Some(Value::Text(_)), Some(Value::Ints(_)), Some(Value::Texts(keys))) => keys,
        _ => Vec::new(),
    };
    Needs::Keys(keys)
}

/// The rows of leases that a statement updates or checks.
fn leases(call: &Call<'_>) -> Option<Vec<RowKey>> {
    let mut params = call.query().1.into_iter();
    match (params.next()?, params.next()?, params.next()?) {
        (Value::Text(namespace), Value::Text(key), Value::Ints(slots)) => {
            let row_key = |slot| (namespace.clone(), key.clone(), slot);
            Some(slots.into_iter().map(row_key).collect())
        }
        (Value::Text(namespace), Value::Text(key), Value::Int(slot)) => {
            Some(vec![(namespace, key, slot)])
        }
        (Value::Texts(namespaces), Value::Texts(keys), Value::Ints(slots)) => {
            let keys = namespaces.into_iter().zip(keys).zip(slots);
            Some(
                keys.map(|((namespace, key), slot)| (namespace, key, slot))
                    .collect(),
            )
        }
        _ => None,
    }
}

/// Whom a statement checks in, where one alone can hold.
fn checks(call: &Call<'_>) -> Option<CheckIn> {
    let name = call.name();
    let params = call.query().1;
    let (key, token) = match (name, params.as_slice()) {
        ("lease.check", [_, Value::Text(key), Value::Ints(slots), Value::Int(token)]) => {
            // Semaphores have several.
            let alone = slots.iter().all(|slot| *slot < 1);
            (format!("{key} {slots:?}"), alone.then_some(*token)?)
        }
        ("mutex.check", [_, _, Value::Text(key), Value::Int(token)]) => (key.clone(), *token),
        _ => return None,
    };
    Some(CheckIn {
        of: (name, key),
        token,
    })
}

/// The `lock_timeout` and the `statement_timeout` of a session from now on, if this sets them.
fn timeouts(call: &Call<'_>) -> Option<(Duration, Duration)> {
    if call.name() != "engine.session_settings" {
        return None;
    }
    let mut params = call.query().1.into_iter().skip(1);
    let mut next = || {
        let Value::Text(text) = params.next()? else {
            return None;
        };
        let millis = text.strip_suffix("ms")?.parse().ok()?;
        Some(Duration::from_millis(millis))
    };
    Some((next()?, next()?))
}

/// The processes whose statements are to be cancelled.
fn cancels(call: &Call<'_>) -> Vec<i64> {
    if call.name() != "engine.cancel" {
        return Vec::new();
    }
    match call.query().1.into_iter().next() {
        Some(Value::Ints(processes)) => processes,
        _ => Vec::new(),
    }
}

impl Connection for Client {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let statement = Statement {
            turn: turn(&call),
            needs: needs(&call),
            checks: checks(&call),
            timeouts: timeouts(&call),
            waits_for: time_limit(&call),
            cancels: cancels(&call),
            request: Request::new(call).into(),
        };
        let answer = self
            .server
            .send(self.session, Message::Call(statement.into()));
        self.answered(answer).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        let answer = self.server.send(self.session, Message::Script(script));
        self.answered(answer).await.map(drop)
    }
}

impl Listener for Client {
    async fn next(&mut self) -> Result<String, Failure> {
        let next = match &mut self.notifications {
            Some(notifications) => notifications.recv().await,
            None => None,
        };
        next.ok_or_else(|| Failure::statement(None, true, "connection reset by peer"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.server.leave(self.session);
    }
}
