//! A connection of the suite's own, which looks into the database.

use std::sync::mpsc::{self, Sender};
use std::thread;

use postgres::error::SqlState;
use postgres::{Client, Config, NoTls, SimpleQueryMessage};
use tokio::sync::oneshot;

use crate::fixture::Problem;

type Rows = Vec<Vec<String>>;
type Answer = Result<Rows, Problem>;

/// Runs SQL on a thread of its own, one text after the other.
#[derive(Debug)]
pub(super) struct Observer {
    jobs: Sender<(String, oneshot::Sender<Answer>)>,
}

impl Observer {
    /// Connects when it is first asked.
    pub(super) fn new(mut config: Config) -> Self {
        let (jobs, queue) = mpsc::channel::<(String, oneshot::Sender<Answer>)>();
        config.application_name("conformance observer");
        thread::spawn(move || {
            let mut client = None;
            for (sql, answer) in queue {
                drop(answer.send(run(&config, &mut client, &sql)));
            }
        });
        Self { jobs }
    }

    /// Runs a script and answers the rows of all its statements.
    pub(super) async fn try_rows(&self, sql: impl Into<String>) -> Answer {
        self.submit(sql)?.await?
    }

    /// Runs a script also when nobody waits for the rows.
    pub(super) fn submit(
        &self,
        sql: impl Into<String>,
    ) -> Result<oneshot::Receiver<Answer>, Problem> {
        let (sender, answer) = oneshot::channel();
        self.jobs.send((sql.into(), sender))?;
        Ok(answer)
    }

    /// As [`try_rows`](Self::try_rows), where a failure is a failure of the case.
    pub(super) async fn rows(&self, sql: impl Into<String>) -> Rows {
        let sql = sql.into();
        match self.try_rows(sql.clone()).await {
            Ok(rows) => rows,
            Err(problem) => panic!("the suite's own SQL failed: {problem}: {sql}"),
        }
    }

    /// The only column of the only row.
    pub(super) async fn value(&self, sql: impl Into<String>) -> String {
        self.rows(sql).await.concat().concat()
    }
}

fn run(config: &Config, client: &mut Option<Client>, sql: &str) -> Answer {
    if client.as_ref().is_none_or(Client::is_closed) {
        *client = Some(config.connect(NoTls)?);
    }
    let messages = match client.as_mut().map(|client| client.simple_query(sql)) {
        // The server was restarted since.
        Some(Err(error)) if error.is_closed() || is_shutdown(&error) => {
            client.insert(config.connect(NoTls)?).simple_query(sql)?
        }
        Some(outcome) => outcome.map_err(|error| describe(&error))?,
        None => Vec::new(),
    };
    Ok(messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let column = |at| row.get(at).unwrap_or_default().to_owned();
                Some((0..row.len()).map(column).collect())
            }
            _ => None,
        })
        .collect())
}

/// The last that a server says to a session which it ended while nobody asked.
fn is_shutdown(error: &postgres::Error) -> bool {
    error.code() == Some(&SqlState::ADMIN_SHUTDOWN)
}

fn describe(error: &postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// A text as an SQL literal.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
