//! Values, rows, errors and configurations of tokio-postgres, which the `postgres` crate shares, as drivers need them: for
//! `lockapi-postgres` and `lockapi-tokio-postgres`. Programs use one of these.

mod config;
mod error;
#[cfg(test)]
mod fuzz;
mod outside;
mod value;

pub use config::{parse_config, with_limits};
pub use error::{failed, not_connected, refused, sqlstate};
pub use outside::check_outside;
pub use value::{Param, Typed, decode, native, outcome, param, typed};
