//! Which entries are wanted.

use super::MAX_ENTRIES;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Key, check_name};

/// Which entries an [`Inspector`](super::Inspector) answers.
#[derive(Clone, Debug)]
pub struct Filter {
    everywhere: bool,
    key: Option<Key>,
    queue: Option<String>,
    limit: usize,
    statements: bool,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            everywhere: false,
            key: None,
            queue: None,
            limit: 1000,
            statements: true,
        }
    }
}

impl Filter {
    /// Everything in the namespace of the backend, at most 1000 entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The lock or the lease of one key.
    #[must_use]
    pub fn key(key: impl Into<Key>) -> Self {
        Self {
            key: Some(key.into()),
            ..Self::default()
        }
    }

    /// The jobs of one queue.
    #[must_use]
    pub fn queue(name: impl Into<String>) -> Self {
        Self {
            queue: Some(name.into()),
            ..Self::default()
        }
    }

    /// All namespaces, and what has no name: the advisory locks of others.
    #[must_use]
    pub fn everywhere(mut self) -> Self {
        self.everywhere = true;
        self
    }

    /// At most so many entries, 1 to [`MAX_ENTRIES`].
    #[must_use]
    pub fn limit(mut self, entries: usize) -> Self {
        self.limit = entries;
        self
    }

    /// Without the statements of sessions that wait or are waited for, which may have data in them: they are not read from the
    /// database.
    #[must_use]
    pub fn without_statements(mut self) -> Self {
        self.statements = false;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.limit == 0 || self.limit > MAX_ENTRIES {
            let message = format!(
                "a limit of {} entries; allowed are 1 to {MAX_ENTRIES}",
                self.limit
            );
            return Err(Error::new(ErrorKind::Invalid, "inspect", message));
        }
        if let Some(key) = &self.key {
            key.check()?;
        }
        if let Some(queue) = &self.queue {
            check_name("queue", queue, 1)?;
        }
        Ok(())
    }

    pub(crate) fn wanted_key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    pub(crate) fn wanted_queue(&self) -> Option<&str> {
        self.queue.as_deref()
    }

    pub(crate) fn namespace<'a>(&self, own: &'a str) -> Option<&'a str> {
        (!self.everywhere).then_some(own)
    }

    pub(crate) fn wants_statements(&self) -> bool {
        self.statements
    }

    pub(crate) fn entries(&self) -> usize {
        self.limit
    }

    pub(crate) fn most(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }
}
