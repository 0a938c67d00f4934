//! How long calls take that are not told how long to wait.

use std::future::Future;
use std::time::Duration;

use lockapi::Result;

use super::History;
use super::uses::SOON;
use crate::runtime::Time;

/// The longest time limit of a statement that programs have.
const LIMIT: Duration = Duration::from_secs(5);
/// A call without a time limit of its own takes about twice as long, whatever the network does.
const TWICE: Duration = Duration::from_secs(11);

impl History {
    /// A call of this name that waits for nobody.
    pub(crate) async fn soon<T>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.timed(name, Duration::ZERO, call).await
    }

    /// One that is two calls, one after the other.
    pub(crate) async fn soon_in_two<T>(
        &self,
        name: &'static str,
        calls: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let other = if self.undisturbed {
            Duration::ZERO
        } else {
            TWICE
        };
        self.timed(name, other, calls).await
    }

    /// A call of this name that waits as long as it is to.
    pub(crate) async fn until<T>(
        &self,
        name: &'static str,
        most: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.timed(name, most.mul_f64(1.015), call).await
    }

    /// Judges how long a call takes, which may wait for so long besides.
    async fn timed<T>(
        &self,
        name: &'static str,
        waits: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let asked = self.runtime.now();
        let answer = call.await;
        self.took_time(name, asked, waits);
        answer
    }

    fn took_time(&self, name: &'static str, asked: Time, waits: Duration) {
        let took = self.runtime.now().saturating_sub(asked);
        let most = match () {
            // A row may be locked by a transaction.
            () if self.undisturbed && self.checks_in => LIMIT + SOON,
            () if self.undisturbed => SOON,
            () if self.prompt => TWICE,
            () => return,
        };
        let promise = "a call ends within twice the time limit, and at once where nothing fails";
        self.runtime.looks_at(promise);
        if took > most + waits {
            let what = format!("{name} took {took:?}");
            self.runtime.violate(promise, what);
        }
    }
}
