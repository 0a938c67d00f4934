//! Values, rows and errors of tokio-postgres, which the `postgres` crate shares, as drivers need them: for
//! `lockapi-postgres` and `lockapi-tokio-postgres`. Programs use one of these.

mod error;
mod value;

pub use error::{failed, not_connected, sqlstate};
pub use value::{Param, decode, native, outcome, param};
