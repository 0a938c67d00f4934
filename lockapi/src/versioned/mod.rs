//! Optimistic locking: writes that succeed only if the row has not changed since it was read.
//!
//! The row carries a version, which every write increments. A writer reads the row, works without
//! holding a lock, and writes with the version that it has read. [`Outcome`] reports in the same round
//! trip whether that version was still current, and [`Retry`] repeats the work if it was not.
//!
//! Backend crates have `VersionedUpdate` for a transaction or connection of the program, and `transact`, which runs a closure in a transaction and repeats it on conflicts.

use std::error::Error as StdError;
use std::fmt;

mod contention;
#[doc(hidden)]
pub mod marked;
mod retry;
mod table;

pub use retry::{Attempt, Attempts, Retry};
pub(crate) use table::quoted;
pub use table::{Table, Update};

use crate::driver::{Connection, Library, Script, Transaction};
use crate::error::{Error, ErrorKind, Result};

/// Any error, as returned by closures that are repeated.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The result of a versioned update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the row was written only if the outcome says so"]
pub enum Outcome {
    /// The row was written; its new version.
    Updated(i64),
    /// Another writer has changed the row since it was read. Nothing was written.
    Stale {
        /// The current version.
        current: i64,
    },
    /// The row does not exist, or no longer exists, or a row-level security policy hides it from the
    /// writer. Nothing was written.
    Gone,
}

impl Outcome {
    /// Of the version that was seen, the one that was found in the row, and the one that was written to
    /// it.
    ///
    /// # Errors
    /// `Unsupported` when the row was not written although it has the version that was read: repeating
    /// it would not help.
    #[doc(hidden)]
    pub fn of(seen: i64, found: Option<i64>, written: Option<i64>) -> Result<Self> {
        match (found, written) {
            (_, Some(version)) => Ok(Self::Updated(version)),
            (Some(current), None) if current == seen => {
                let message = "the row has the version that was seen and was not written: \
                               a trigger or a policy of its table suppressed it";
                Err(Error::new(
                    ErrorKind::Unsupported,
                    "update_versioned",
                    message,
                ))
            }
            (Some(current), None) => Ok(Self::Stale { current }),
            (None, None) => Ok(Self::Gone),
        }
    }

    /// The new version, or a [`Conflict`].
    ///
    /// # Errors
    /// A conflict, after which [`Retry`] repeats the work if the row still exists.
    pub fn updated(self) -> std::result::Result<i64, Conflict> {
        match self {
            Self::Updated(version) => Ok(version),
            Self::Stale { current } => Err(Conflict {
                current: Some(current),
            }),
            Self::Gone => Err(Conflict { current: None }),
        }
    }
}

/// Checks that the transaction on `connection` can be committed. Where a statement has failed, or the transaction has been
/// ended already, PostgreSQL reports the commit as done all the same.
///
/// `transact` of the backend crates does this as well; it is for work that commits its transaction itself.
///
/// # Cancel safety
/// When dropped, the transaction goes on.
///
/// # Errors
/// `Invalid` when a statement of the transaction has failed, unless that was rolled back to a savepoint, and where no
/// transaction is open; those of the connection.
pub fn check_before_commit<L: Library, C: Transaction<L> + ?Sized>(
    connection: &mut C,
) -> L::Outcome<'_, Result<()>> {
    L::outcome(Box::pin(async move {
        let mut connection = connection.connection();
        let checked = connection.script(Script::CheckTransaction).await;
        checked.map_err(|failure| failure.error_before_commit("commit"))
    }))
}

/// A versioned update that did not find the version that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The current version of the row; `None` if there is no row.
    pub current: Option<i64>,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.current {
            Some(current) => write!(
                f,
                "the row was changed in between: its version is now {current}"
            ),
            None => f.write_str("the row does not exist, or no longer exists"),
        }
    }
}

impl StdError for Conflict {}

/// Whether work that failed with this error may be repeated: after a [`Conflict`] on a row that exists,
/// a serialization failure or a deadlock (SQLSTATE 40001 and 40P01). `sqlstate` returns the code of a
/// driver's error.
///
/// An error without a code, such as a connection that ended during the commit, is never a conflict: the
/// outcome of the work is unknown.
#[must_use]
pub fn is_conflict(
    error: &(dyn StdError + 'static),
    sqlstate: impl Fn(&(dyn StdError + 'static)) -> Option<String>,
) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(conflict) = error.downcast_ref::<Conflict>() {
            return conflict.current.is_some();
        }
        let own = error.downcast_ref::<Error>().and_then(Error::sqlstate);
        let code = own.map(str::to_owned).or_else(|| sqlstate(error));
        if let Some(code) = code {
            return code == "40001" || code == "40P01";
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a driver, with the code that it has.
    #[derive(Debug)]
    struct Driver(Option<&'static str>, Option<Conflict>);

    impl fmt::Display for Driver {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("of a driver")
        }
    }

    impl StdError for Driver {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.1.as_ref().map(|conflict| conflict as _)
        }
    }

    fn repeated(error: &(dyn StdError + 'static)) -> bool {
        is_conflict(error, |error| {
            let driver = error.downcast_ref::<Driver>()?;
            driver.0.map(str::to_owned)
        })
    }

    #[test]
    fn only_what_certainly_did_not_happen_is_a_conflict() {
        let (stale, gone) = (Conflict { current: Some(2) }, Conflict { current: None });
        for code in ["40001", "40P01"] {
            assert!(repeated(&Driver(Some(code), None)), "{code}");
        }
        for code in ["23505", "57014", "57P01", "08006"] {
            assert!(!repeated(&Driver(Some(code), None)), "{code}");
            assert!(!repeated(&Driver(Some(code), Some(stale))), "{code}");
        }
        assert!(!repeated(&Driver(None, None)), "unknown");
        let unknown = Error::new(ErrorKind::Indeterminate, "commit", "it may have happened");
        assert!(!repeated(&unknown));
        let suppressed = Outcome::of(7, Some(7), None).unwrap_err();
        assert_eq!(suppressed.kind(), ErrorKind::Unsupported);
        assert!(!repeated(&suppressed), "it would never end");
        assert!(repeated(&stale));
        assert!(repeated(&Driver(None, Some(stale))), "it is inside");
        assert!(!repeated(&gone));
    }
}
