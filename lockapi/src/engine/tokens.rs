//! Keeps the tokens that a session draws safe from a crash of the server.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::lane::{Lane, Queued, ended};
use crate::error::{Failure, Result};
use crate::mutex::{DRAWS_BEFORE_FLUSH, Flush};
use crate::seam::Connector;

impl Queued for Flush {
    const TURN: u8 = 5;
    const NAME: &'static str = "flush";
}

/// Counts what a session draws, and has the log forced to disk in time.
///
/// The lane of tables does that, on its own connection: a disk that is slow must not make a
/// session that holds locks look dead. The log is one for all sessions.
pub(super) struct Tokens<C: Connector> {
    tables: Arc<Lane<C>>,
    draws: i64,
    flush: Option<Flushing>,
}

struct Flushing {
    /// How many draws were counted when it was asked for.
    covers: i64,
    answer: oneshot::Receiver<Result<()>>,
}

impl<C: Connector> Tokens<C> {
    pub(super) fn new(tables: &Arc<Lane<C>>) -> Self {
        Self {
            tables: Arc::clone(tables),
            draws: 0,
            flush: None,
        }
    }

    /// Counts a statement that may draw a token; waits only when too many are not safe yet.
    pub(super) async fn draw(&mut self) -> std::result::Result<(), Failure> {
        if self.draws >= DRAWS_BEFORE_FLUSH / 2 && self.flush.is_none() {
            self.flush = Some(self.start());
        }
        if let Some(flushing) = &mut self.flush {
            let answer = if self.draws < DRAWS_BEFORE_FLUSH {
                flushing.answer.try_recv()
            } else {
                let answer = (&mut flushing.answer).await;
                answer.map_err(|_| TryRecvError::Closed)
            };
            let covers = flushing.covers;
            match answer {
                Ok(Ok(())) => {
                    self.draws -= covers;
                    self.flush = None;
                }
                Err(TryRecvError::Empty) => {}
                Ok(Err(error)) => self.not_safe(error)?,
                Err(TryRecvError::Closed) => self.not_safe(ended(Flush::NAME))?,
            }
        }
        self.draws += 1;
        Ok(())
    }

    fn start(&self) -> Flushing {
        let (sender, answer) = oneshot::channel();
        self.tables.submit(Flush, move |outcome| {
            // A session that ended does not want to know.
            drop(sender.send(outcome));
        });
        Flushing {
            covers: self.draws,
            answer,
        }
    }

    /// Another attempt is made as long as there is room; then nothing more is drawn.
    fn not_safe(&mut self, error: crate::Error) -> std::result::Result<(), Failure> {
        self.flush = None;
        if self.draws < DRAWS_BEFORE_FLUSH {
            return Ok(());
        }
        Err(Failure::connect(None, error))
    }
}
