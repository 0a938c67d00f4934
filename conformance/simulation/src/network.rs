//! The driver: what a process has of the network.

use std::time::Duration;

use lockapi::Failure;
use lockapi::driver::{
    BackgroundTask, Call, Connection, Connector, Listener, Mode, Rows, Script, Value,
};
use lockapi::suite::queue::Name;
use lockapi::suite::simulation::Request;
use tokio::sync::{mpsc, oneshot};

use crate::judges::Turn;
use crate::runtime::{ProgramId, Runtime};
use crate::server::{Message, Needs, Server, Statement};

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

impl Client {
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
    if !name.starts_with("limit.") || matches!(name, "limit.level" | "limit.sweep") {
        return Needs::Nothing;
    }
    let texts = call.query().1.into_iter().filter_map(|param| match param {
        Value::Texts(texts) => Some(texts),
        _ => None,
    });
    Needs::Keys(texts.flatten().collect())
}

/// The `lock_timeout` of a session from now on, if this sets it.
fn lock_timeout(call: &Call<'_>) -> Option<Duration> {
    if call.name() != "engine.session_settings" {
        return None;
    }
    let params = call.query().1.into_iter().nth(1)?;
    let Value::Text(text) = params else {
        return None;
    };
    let millis = text.strip_suffix("ms")?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

impl Connection for Client {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let statement = Statement {
            turn: turn(&call),
            needs: needs(&call),
            lock_timeout: lock_timeout(&call),
            request: Request::new(call),
        };
        let answer = self.server.send(self.session, Message::Call(statement));
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
