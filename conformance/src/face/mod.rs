//! The ways that a program calls a backend, each as an adapter under the same cases.

use std::fmt;
use std::sync::Arc;

use lockapi::{Backend, Result};

use crate::fixture::{Fixture, Need};

mod blocking;
mod generic;
mod ids;
mod limits;

/// How the cases call the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Through functions that are generic over the traits.
    Generic,
    /// Through `Arc<dyn Backend>`.
    Dyn,
    /// Through [`lockapi::blocking`], connected where there is no async runtime.
    Blocking,
}

impl Face {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Generic, Self::Dyn, Self::Blocking];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|face| face.to_string() == name)
    }

    /// Whether a need can be met when calling this way.
    pub(crate) fn offers(self, need: Need) -> bool {
        need != Need::Futures || self != Self::Blocking
    }

    /// Connects a backend of the fixture and puts the adapter in front of it.
    pub(crate) async fn connect(
        self,
        fixture: &Arc<dyn Fixture>,
        options: lockapi::BackendOptions,
    ) -> Result<Arc<dyn Backend>> {
        match self {
            Self::Generic => Ok(generic::wrap(fixture.backend(options).await?)),
            Self::Dyn => fixture.backend(options).await,
            Self::Blocking => {
                let fixture = Arc::clone(fixture);
                let connected = off_runtime(move || {
                    lockapi::blocking::Backend::connect(fixture.backend(options))
                });
                Ok(blocking::wrap(connected.await?))
            }
        }
    }

    /// Puts the adapter in front of a backend.
    #[must_use]
    pub fn wrap(self, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        match self {
            Self::Generic => generic::wrap(backend),
            Self::Dyn => backend,
            Self::Blocking => blocking::wrap(backend.into()),
        }
    }
}

impl fmt::Display for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::Dyn => "dyn",
            Self::Blocking => "blocking",
        })
    }
}

/// Runs blocking work on a thread that knows of no runtime.
pub(crate) async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || drop(sender.send(work())));
    done.await.expect("the work does not panic")
}
