//! Values, rows, errors and updates of Diesel as drivers need them: for `lockapi-diesel` and `lockapi-diesel-async`.
//! Programs use one of these.

mod error;
#[cfg(test)]
mod fuzz;
mod update;
mod value;

pub use error::{is_conflict, is_local, not_encoded, report, sqlstate};
pub use update::{Binding, Query, Versions, outcome, update_query};
pub use value::{Bound, Columns, rows};
