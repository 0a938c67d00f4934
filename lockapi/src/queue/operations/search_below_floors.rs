//! Finding jobs that came back before the places where claims start.

use super::complete_and_claim::Floor;
use super::manage::Name;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// A part of the index of due jobs: the number of a priority, after which time and up to which place.
pub type SearchRange = (i64, i64, Floor);

/// Finds jobs that can be claimed; a batch of one.
#[derive(Clone, Debug)]
pub struct SearchBelowFloors {
    /// The queue.
    pub name: Name,
    /// The names of the jobs; an empty list means all.
    pub names: Vec<String>,
    /// Where to search, a part for each priority.
    pub priorities: Vec<SearchRange>,
    /// The numbers of claims whose answers were lost.
    pub lost: Vec<i64>,
}

/// The answer to a [`SearchBelowFloors`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchResult {
    /// The first jobs, by the numbers of their priorities.
    pub found: Vec<(i64, Floor)>,
    /// How many entries of the index were read.
    pub read: i64,
}

impl Operation for SearchBelowFloors {
    type Output = SearchResult;

    const STATEMENT: Statement = Statement {
        name: "queue.search_below_floors",
        sql: include_str!("search_below_floors.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Ints,
        ],
        columns: &[Type::Int, Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let ints = |field: fn(&SearchRange) -> i64| {
            Value::Ints(one.priorities.iter().map(field).collect())
        };
        let mut params = one.name.params().to_vec();
        params.extend([
            ints(|priority| priority.0),
            ints(|priority| priority.1),
            ints(|priority| priority.2.0),
            ints(|priority| priority.2.1),
            Value::Texts(one.names.clone()),
            Value::Ints(one.lost.clone()),
        ]);
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<SearchResult>, Failure> {
        let mut result = SearchResult {
            found: Vec::new(),
            read: 0,
        };
        for mut row in rows {
            match row.maybe_int(0)? {
                Some(priority) => {
                    let place = (row.int(1)?, row.int(2)?);
                    result.found.push((priority, place));
                }
                None => result.read = row.int(3)?,
            }
        }
        Ok(vec![result])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let found = model.jobs.search_below_floors(model.now, batch.first()?);
        let null = Value::Null(Type::Int);
        let row = |(priority, (at, id))| {
            let found = [priority, at, id].map(Value::Int);
            Row(found.into_iter().chain([null.clone()]).collect())
        };
        let mut rows: Rows = found.into_iter().map(row).collect();
        rows.push(Row(vec![
            null.clone(),
            null.clone(),
            null.clone(),
            Value::Int(0),
        ]));
        Some(rows)
    }
}
