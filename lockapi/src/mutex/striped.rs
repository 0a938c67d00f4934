//! One hot name, divided into stripes.

use std::sync::Arc;
use std::time::Duration;

use super::{LockOwner, Mutex, MutexGuard, MutexSet, MutexSetGuard};
use crate::error::{Error, ErrorKind, Result};
use crate::key::advisory_key;

/// A mutex that is divided into stripes, so that work on different parts of one thing does not wait
/// for each other.
///
/// Each caller names the part that it works [on](Self::lock), such as a customer or a shard of a
/// counter; equal texts share a stripe, in every process that uses the same number of stripes.
/// Stripe `n` of `name` is the mutex of the key `name/n`, counted from 0. The stripe of a text is
/// its [`advisory_key`](crate::advisory_key) under the name, taken as an unsigned number, modulo
/// the number of stripes.
///
/// ```
/// use lockapi::memory::Database;
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = Database::new().connect().await?;
/// let counter = backend.striped("counter", 16)?;
/// let one = counter.lock("customer 7").await?; // 15 other stripes are free
/// one.unlock().await?;
/// let whole = counter.lock_all().await?; // to add up, say
/// # whole.unlock().await?;
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
///
/// # Guarantees
/// Those of [`Mutex`] for each stripe, and of [`MutexSet`] for the whole. Programs that use the same
/// name with different numbers of stripes do not exclude each other.
///
/// # Limits
/// 1 to [`MAX_STRIPES`](Self::MAX_STRIPES); a stripe's key is at most 255 bytes.
#[derive(Clone, Debug)]
pub struct Striped {
    name: Arc<str>,
    stripes: Arc<[Arc<dyn Mutex>]>,
    set: MutexSet,
}

impl Striped {
    /// The most stripes that a name may be divided into.
    pub const MAX_STRIPES: usize = MutexSet::MAX_KEYS;

    pub(crate) fn new(
        name: &str,
        stripes: usize,
        open: impl Fn(String) -> Result<Arc<dyn Mutex>>,
    ) -> Result<Self> {
        if stripes == 0 || stripes > Self::MAX_STRIPES {
            let message = format!("{stripes} stripes; allowed are 1 to {}", Self::MAX_STRIPES);
            return Err(Error::new(ErrorKind::Invalid, "striped", message).on(name));
        }
        let stripes: Result<Vec<_>> = (0..stripes).map(|n| open(format!("{name}/{n}"))).collect();
        let stripes = stripes.map_err(|error| error.during("striped"))?;
        Ok(Self {
            name: name.into(),
            set: MutexSet::new(stripes.clone())?,
            stripes: stripes.into(),
        })
    }

    /// The same stripes, locked by a [`LockOwner`].
    #[must_use]
    pub fn on(&self, owner: &LockOwner) -> Self {
        Self {
            name: Arc::clone(&self.name),
            stripes: self.stripes.iter().map(|stripe| stripe.on(owner)).collect(),
            set: self.set.on(owner),
        }
    }

    /// The stripe for the text `by`.
    #[must_use]
    pub fn stripe(&self, by: &str) -> &Arc<dyn Mutex> {
        &self.stripes[nth(&self.name, by, self.stripes.len())]
    }

    /// Waits until the stripe for `by` is locked.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// As for [`Mutex::lock`].
    pub async fn lock(&self, by: &str) -> Result<Box<dyn MutexGuard>> {
        self.stripe(by).lock().await
    }

    /// As [`lock`](Self::lock), and waits for at most `timeout`.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// As for [`Mutex::lock_timeout`].
    pub async fn lock_timeout(&self, by: &str, timeout: Duration) -> Result<Box<dyn MutexGuard>> {
        self.stripe(by).lock_timeout(timeout).await
    }

    /// Waits until all stripes are locked.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays locked.
    ///
    /// # Errors
    /// As for [`MutexSet::lock_all`].
    pub async fn lock_all(&self) -> Result<MutexSetGuard> {
        self.set.lock_all().await
    }

    /// All stripes, as a set.
    #[must_use]
    pub fn all(&self) -> &MutexSet {
        &self.set
    }
}

fn nth(name: &str, by: &str, stripes: usize) -> usize {
    let hash = advisory_key(name, by).cast_unsigned();
    // The remainder is smaller than a number of stripes.
    usize::try_from(hash % stripes as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_the_same_in_every_version() {
        let chosen = ["", "a", "customer 7", "\u{1f980}"].map(|by| nth("counter", by, 16));
        assert_eq!(chosen, [0, 1, 8, 10]);
    }

    #[test]
    fn every_stripe_is_used() {
        let mut used = [0; 16];
        for n in 0..1600 {
            used[nth("counter", &n.to_string(), 16)] += 1;
        }
        assert!(
            used.iter().all(|times| (50..200).contains(times)),
            "{used:?}"
        );
    }
}
