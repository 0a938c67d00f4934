//! The tokio runtime of an asynchronous driver.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Failure, Result};

/// The tokio runtime that a driver's tasks run on: that of the program, or one of its own.
///
/// One of its own has one thread, which ends with the last clone.
#[derive(Clone, Debug)]
pub struct Runtime {
    handle: Handle,
    /// Ends with the last clone.
    _own: Option<Arc<Own>>,
}

/// A runtime that ends without waiting: it may be dropped on another one.
#[derive(Debug)]
struct Own(Option<tokio::runtime::Runtime>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Runtime {
    /// The current one, or a new one whose thread has this name where there is none.
    ///
    /// # Errors
    /// `Unavailable` when none can be started.
    pub fn current_or_own(thread: &str) -> Result<Self> {
        if let Ok(handle) = Handle::try_current() {
            return Ok(Self { handle, _own: None });
        }
        let mut builder = Builder::new_multi_thread();
        let own = builder.worker_threads(1).thread_name(thread).enable_all();
        let own = own.build().map_err(|error| {
            let message = format!("the runtime of the backend could not be started: {error}");
            Error::new(ErrorKind::Unavailable, "connect", message)
        })?;
        Ok(Self {
            handle: own.handle().clone(),
            _own: Some(Arc::new(Own(Some(own)))),
        })
    }

    /// Makes it the current one of this thread.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Starts a task, which goes on if the handle is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.handle.spawn(task)
    }
}

/// Waits for a host to accept a connection, for at most `limit` where there is one.
///
/// # Errors
/// That of `connecting`, or that the host did not answer in time.
pub async fn within<T>(
    limit: Option<Duration>,
    connecting: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(limit) = limit else {
        return connecting.await;
    };
    timeout(limit, connecting).await.unwrap_or_else(|_| {
        let message = format!("a host did not answer within {limit:?}");
        Err(Failure::connect(None, message))
    })
}
