//! An operation as a value.

use std::fmt;

use super::value::{Rows, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// A constant SQL statement with the types of its parameters and columns.
#[derive(Debug)]
pub struct Statement {
    /// A short name, for errors and traces.
    pub name: &'static str,
    /// The text; every parameter in it is cast to its declared type. Comment lines at its beginning are
    /// not sent.
    pub sql: &'static str,
    /// The types of its parameters.
    pub params: &'static [Type],
    /// The types of its columns.
    pub columns: &'static [Type],
}

/// The text without the comment that its file begins with.
pub(crate) const fn without_comment(sql: &str) -> &str {
    let bytes = sql.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() && bytes[at] == b'-' && bytes[at + 1] == b'-' {
        while at < bytes.len() && bytes[at] != b'\n' {
            at += 1;
        }
        at += 1;
    }
    sql.split_at(at).1
}

impl Statement {
    /// Without the comment that the file of its text begins with: no call has to carry it.
    const fn bare(self) -> Self {
        Self {
            sql: without_comment(self.sql),
            ..self
        }
    }

    /// Checks the columns that a row has, by the object identifiers of their types; `None` is a
    /// column whose type the driver does not tell. A driver may be willing to read a column as
    /// another type than it has: here only the declared one will do.
    ///
    /// # Errors
    /// [`Failure::corrupt`] when they are not the declared ones.
    pub fn check_columns(
        &self,
        found: impl IntoIterator<Item = Option<u32>>,
    ) -> Result<(), Failure> {
        let found: Vec<_> = found.into_iter().collect();
        let declared = self.columns.iter().map(|of| of.oid());
        let as_declared = found.len() == self.columns.len()
            && declared
                .zip(&found)
                .all(|(declared, found)| found.is_none_or(|it| it == declared));
        if as_declared {
            return Ok(());
        }
        Err(Failure::corrupt(format!(
            "{} returned columns of the types {found:?}; expected were {:?}",
            self.name, self.columns
        )))
    }
}

/// Something that a primitive does to the database, defined once for every backend.
///
/// An operation is written over a slice, so that concurrent calls share a statement. Neither its SQL
/// nor its model reads the clock of the client.
pub trait Operation: Clone + Send + Sync + Sized + 'static {
    /// The answer to one element of the slice.
    type Output: Send + Sync + PartialEq + fmt::Debug;

    /// The statement for all batches.
    const STATEMENT: Statement;

    /// A cheaper statement for some batches. If it returns no row, it has done nothing, and
    /// [`STATEMENT`](Self::STATEMENT) is run.
    const SIMPLE: Option<Statement> = None;

    /// The statement's parameters for `batch`.
    fn params(batch: &[Self]) -> Vec<Value>;

    /// Whether [`SIMPLE`](Self::SIMPLE) can be used for this batch.
    #[must_use]
    fn is_simple(_: &[Self]) -> bool {
        false
    }

    /// The parameters of [`SIMPLE`](Self::SIMPLE): of a batch of one those of
    /// [`STATEMENT`](Self::STATEMENT), with the one element of each array in its place.
    #[must_use]
    fn simple_params(batch: &[Self]) -> Vec<Value> {
        Self::params(batch).into_iter().map(Value::scalar).collect()
    }

    /// Reads the statement's rows: one output for each element of `batch`, in its order.
    ///
    /// # Errors
    /// [`Failure::corrupt`] when the rows do not have the declared shape.
    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure>;

    /// The meaning of the statement: the rows that it returns on `model` when run by `session`.
    ///
    /// `None` means that the statement would wait for another session.
    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows>;
}

/// A statement for a batch of one operation, without its type: what a driver runs.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    query: &'a dyn AnyQuery,
    simple: bool,
}

impl<'a> Call<'a> {
    /// By the statement that does for all batches.
    pub(super) fn new(query: &'a dyn AnyQuery) -> Self {
        Self {
            query,
            simple: false,
        }
    }

    /// By the simple statement, if that does for the batch.
    pub(super) fn simple(query: &'a dyn AnyQuery) -> Option<Self> {
        let simple = query.is_simple();
        simple.then_some(Self { query, simple })
    }

    /// The statement to run, and the values to send with it.
    #[must_use]
    pub fn query(&self) -> (&'static Statement, Vec<Value>) {
        self.query.query(self.simple)
    }

    /// The name of the operation.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.query.name()
    }

    /// See [`Operation::model`].
    pub(crate) fn model(&self, model: &mut ModelState, session: u64) -> Option<Rows> {
        self.query.model(model, session)
    }

    /// The meaning of the call, for a server that goes on when the client has left.
    #[cfg(feature = "suite")]
    #[must_use]
    pub(crate) fn meaning(&self) -> Meaning {
        self.query.meaning()
    }
}

/// See [`Operation::model`].
#[cfg(feature = "suite")]
pub(crate) type Meaning = Box<dyn Fn(&mut ModelState, u64) -> Option<Rows> + Send + Sync>;

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Call").field(&self.name()).finish()
    }
}

/// A batch of one operation, and its answers once it was run.
pub(crate) struct Query<'a, O: Operation> {
    batch: &'a [O],
    answers: Vec<O::Output>,
}

impl<'a, O: Operation> Query<'a, O> {
    pub(crate) fn new(batch: &'a [O]) -> Self {
        Self {
            batch,
            answers: Vec::new(),
        }
    }

    /// One for each request, in their order.
    pub(crate) fn into_answers(self) -> Vec<O::Output> {
        self.answers
    }
}

/// A [`Query`] without its type: everything between an operation and the driver is compiled once, and not for each
/// operation.
pub(crate) trait AnyQuery: Send + Sync {
    fn name(&self) -> &'static str;
    /// How many requests there are.
    fn len(&self) -> usize;
    fn is_simple(&self) -> bool;
    fn query(&self, simple: bool) -> (&'static Statement, Vec<Value>);
    /// Reads the answers from the rows of the statement.
    fn read(&mut self, rows: Rows) -> Result<(), Failure>;
    fn model(&self, model: &mut ModelState, session: u64) -> Option<Rows>;
    #[cfg(feature = "suite")]
    fn meaning(&self) -> Meaning;
}

impl<O: Operation> AnyQuery for Query<'_, O> {
    fn name(&self) -> &'static str {
        O::STATEMENT.name
    }

    fn len(&self) -> usize {
        self.batch.len()
    }

    fn is_simple(&self) -> bool {
        O::is_simple(self.batch)
    }

    fn query(&self, simple: bool) -> (&'static Statement, Vec<Value>) {
        let statement = const {
            &match O::SIMPLE {
                Some(statement) => Some(statement.bare()),
                None => None,
            }
        };
        match statement {
            Some(statement) if simple => (statement, O::simple_params(self.batch)),
            _ => (&const { O::STATEMENT.bare() }, O::params(self.batch)),
        }
    }

    fn read(&mut self, rows: Rows) -> Result<(), Failure> {
        let answers = O::decode(self.batch, rows)?;
        if answers.len() != self.batch.len() {
            return Err(Failure::corrupt(format!(
                "{} returned {} answers to {} requests",
                O::STATEMENT.name,
                answers.len(),
                self.batch.len()
            )));
        }
        self.answers = answers;
        Ok(())
    }

    fn model(&self, model: &mut ModelState, session: u64) -> Option<Rows> {
        O::model(self.batch, model, session)
    }

    #[cfg(feature = "suite")]
    fn meaning(&self) -> Meaning {
        let batch = self.batch.to_vec();
        Box::new(move |model, session| O::model(&batch, model, session))
    }
}
