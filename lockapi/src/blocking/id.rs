//! [`IdGen`](crate::IdGen) for blocking callers.

use std::sync::Arc;

use super::block_on;
use crate::error::Result;
use crate::id;
use crate::id::{Id, Ids};

/// A [generator of ids](crate::IdGen) for blocking callers.
///
/// ```
/// use lockapi::{blocking::Backend, id::IdOptions, memory::Database};
///
/// let backend = Backend::connect(Database::new().connect())?;
/// let orders = backend.id_gen("orders", IdOptions::default())?;
/// let first = orders.next()?;
/// assert!(orders.batch(100)?.all(|id| id > first));
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IdGen(Arc<dyn id::IdGen>);

impl From<Arc<dyn id::IdGen>> for IdGen {
    fn from(ids: Arc<dyn id::IdGen>) -> Self {
        Self(ids)
    }
}

impl IdGen {
    /// The name that its ids are unique under.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The next id. It blocks when there is none at hand.
    ///
    /// # Errors
    /// As for [`IdGen::next`](crate::IdGen#method.next).
    pub fn next(&self) -> Result<Id> {
        match self.0.try_next()? {
            Some(id) => Ok(id),
            None => block_on(self.0.next()),
        }
    }

    /// The next id, if there is one without waiting.
    ///
    /// # Errors
    /// As for [`IdGen::try_next`](crate::IdGen#method.try_next).
    pub fn try_next(&self) -> Result<Option<Id>> {
        self.0.try_next()
    }

    /// The next `count` ids; no other caller's are between them.
    ///
    /// # Errors
    /// As for [`IdGen::batch`](crate::IdGen#method.batch).
    pub fn batch(&self, count: u64) -> Result<Ids> {
        block_on(self.0.batch(count))
    }

    /// Takes `count` ids that follow each other, if that is possible without waiting.
    ///
    /// # Errors
    /// As for [`IdGen::try_take`](id::IdGen::try_take).
    pub fn try_take(&self, count: u64) -> Result<Option<Ids>> {
        self.0.try_take(count)
    }

    /// Waits until `count` ids can be taken, if nobody else takes them.
    ///
    /// # Errors
    /// As for [`IdGen::ready`](id::IdGen::ready).
    pub fn ready(&self, count: u64) -> Result<()> {
        block_on(self.0.ready(count))
    }
}
