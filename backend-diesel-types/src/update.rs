//! The statement of an update of a versioned row.

use std::fmt;

use diesel::deserialize::{self, QueryableByName};
use diesel::pg::Pg;
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::row::NamedRow;
use diesel::serialize::ToSql;
use diesel::sql_query;
use diesel::sql_types::{BigInt, HasSqlType, Nullable};
use lockapi::versioned::{Outcome, Update};

/// The query of an update.
pub type Query<'t> = BoxedSqlQuery<'t, Pg, SqlQuery>;

/// A value of the program, which binds itself to a query.
pub struct Binding<'t>(Box<dyn FnOnce(Query<'t>) -> Query<'t> + Send + 't>);

impl fmt::Debug for Binding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").finish_non_exhaustive()
    }
}

impl<'t> Binding<'t> {
    /// Of a value that has the SQL type `S`.
    pub fn new<S, V>(value: V) -> Self
    where
        S: Send + 't,
        V: ToSql<S, Pg> + Send + 't,
        Pg: HasSqlType<S>,
    {
        Self(Box::new(move |query| query.bind::<S, V>(value)))
    }
}

/// The query that writes if the row has the version `seen`.
///
/// # Errors
/// `Invalid` for columns that cannot be, and a key that is not complete.
pub fn update_query<'t>(update: Update<'t, Binding<'t>>, seen: i64) -> lockapi::Result<Query<'t>> {
    let (sql, values) = update.statement(Binding::new::<BigInt, _>(seen))?;
    let query = sql_query(sql).into_boxed();
    Ok(values
        .into_iter()
        .fold(query, |query, value| (value.0)(query)))
}

/// The version that was found, and the one that was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Versions {
    found: Option<i64>,
    written: Option<i64>,
}

impl QueryableByName<Pg> for Versions {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> deserialize::Result<Self> {
        Ok(Self {
            found: NamedRow::get::<Nullable<BigInt>, _>(row, "found")?,
            written: NamedRow::get::<Nullable<BigInt>, _>(row, "written")?,
        })
    }
}

/// What an update has done, that was to write if the row had the version `seen`.
///
/// # Errors
/// `Corrupt` for versions that cannot be.
pub fn outcome(rows: &[Versions], seen: i64) -> lockapi::Result<Outcome> {
    let Versions { found, written } = rows.first().copied().unwrap_or_default();
    Outcome::of(seen, found, written)
}
