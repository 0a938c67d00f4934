//! Generators of ids, called through generics and blocking.

use std::sync::Arc;

use async_trait::async_trait;
use lockapi::id::{IdGen, Ids};
use lockapi::{Result, blocking};

use super::blocking::call;

pub(super) fn generic(ids: Arc<dyn IdGen>) -> Arc<dyn IdGen> {
    Arc::new(Through(ids))
}

pub(super) fn blocking(ids: blocking::IdGen) -> Arc<dyn IdGen> {
    Arc::new(Blocking(ids))
}

/// Calls what is inside as a type parameter and not as a trait object.
#[derive(Debug)]
struct Through<T: ?Sized>(Arc<T>);

#[async_trait]
impl<G: IdGen + ?Sized> IdGen for Through<G> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn try_take(&self, count: u64) -> Result<Option<Ids>> {
        self.0.try_take(count)
    }

    async fn ready(&self, count: u64) -> Result<()> {
        self.0.ready(count).await
    }
}

#[derive(Debug)]
struct Blocking(blocking::IdGen);

#[async_trait]
impl IdGen for Blocking {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn try_take(&self, count: u64) -> Result<Option<Ids>> {
        self.0.try_take(count)
    }

    async fn ready(&self, count: u64) -> Result<()> {
        let ids = self.0.clone();
        call(move || ids.ready(count)).await
    }
}
