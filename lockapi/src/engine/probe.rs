//! How the server is reached.

use std::time::Duration;

use super::connection::settle;
use super::driver::Driver;
use super::settle::Settle;
use crate::driver::{Connection, Mode, Operation, Row, Rows, Script, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::random;

const BEGIN: &str = include_str!("begin.sql");

/// How long a statement of the probe may take at the server.
const LIMIT: Duration = Duration::from_secs(5);

/// Refuses a standby, and tells whether sessions are shared behind a transaction-pooling proxy.
///
/// One client leaves markers in its session; another, inside a transaction, looks for them. A
/// proxy gives the second client the server session that the first one has just left, or the
/// first one does not find its marker again.
pub(crate) async fn probe(driver: &Driver) -> Result<Mode, Failure> {
    const ROUNDS: usize = 4;
    let mut one = driver.connect(Mode::Proxied).await?;
    one.script(Script::Begin(BEGIN)).await?;
    settle(&mut one, Settle::transaction(Duration::ZERO, LIMIT)).await?;
    one.script(Script::Commit).await?;
    let mut other = driver.connect(Mode::Proxied).await?;
    let read = || [Marker(String::new())];
    for _ in 0..ROUNDS {
        let drawn = random::text().map_err(|error| Failure::connect(None, error))?;
        let marker = format!("m{drawn}");
        mark(&mut one, Marker(marker.clone())).await?;
        // Where sessions take turns the next one has not got it, where the last one is used again
        // the other client finds it.
        if mark(&mut one, Marker(String::new())).await? != marker {
            return Ok(Mode::Proxied);
        }
        other.script(Script::Begin(BEGIN)).await?;
        if other.perform(&read()).await? == [marker.clone()] {
            // Where the proxy has one session only, the first client would wait for it for ever.
            other.script(Script::Commit).await?;
            return Ok(Mode::Proxied);
        }
        let seen_here = mark(&mut one, Marker(String::new())).await?;
        other.script(Script::Commit).await?;
        if seen_here != marker {
            return Ok(Mode::Proxied);
        }
    }
    mark(&mut one, Marker("-".to_owned())).await?;
    Ok(Mode::Direct)
}

async fn mark<N: Connection>(connection: &mut N, marker: Marker) -> Result<String, Failure> {
    connection.script(Script::Begin(BEGIN)).await?;
    let mut answers = connection.perform(&[marker]).await?;
    connection.script(Script::Commit).await?;
    answers
        .pop()
        .ok_or_else(|| Failure::corrupt("the marker was not answered"))
}

/// Leaves, reads or takes away a marker in a session; a batch of one.
#[derive(Clone, Debug)]
pub struct Marker(pub String);

impl Operation for Marker {
    type Output = String;

    const STATEMENT: Statement = Statement {
        name: "engine.marker",
        sql: include_str!("marker.sql"),
        params: &[Type::Text],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|one| Value::Text(one.0.clone())).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<String>, Failure> {
        rows.into_iter().map(|mut row| row.text(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let marker = model.marker(session, &batch.first()?.0);
        Some(vec![Row(vec![Value::Text(marker)])])
    }
}
