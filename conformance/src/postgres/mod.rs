//! Backends on `PostgreSQL`, as subjects of the suite.
//!
//! [`Postgres`] is the same for all drivers; what differs is in a [`Driver`].

use std::sync::Arc;

use async_trait::async_trait;
use lockapi::engine::Options;
use lockapi::{Backend, Result};

use crate::fixture::{Fixture, Need, Place, Problem, Subject, Transaction};

mod address;
mod database;
mod observer;
mod place;
mod proxy;

use database::OnPostgres;

/// How a backend crate connects.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// The name of the backend.
    fn name(&self) -> &'static str;

    /// Connects a backend to a URL.
    ///
    /// # Errors
    /// Those of the backend.
    async fn connect(&self, url: &str, options: Options) -> Result<Arc<dyn Backend>>;

    /// Connects a backend with a pool of one connection, which is in use as long as the second
    /// value lives; `None` where programs have no pool.
    ///
    /// # Errors
    /// Those of the backend.
    async fn connect_beside_full_pool(
        &self,
        url: &str,
        options: Options,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>>;

    /// Begins a transaction on a connection of the user.
    async fn begin(&self, url: &str) -> Box<dyn Transaction>;
}

/// A backend on `PostgreSQL`, by its driver.
#[derive(Clone, Debug)]
pub struct Postgres<D> {
    driver: Arc<D>,
}

impl<D: Driver> Postgres<D> {
    /// The subject for a driver.
    pub fn new(driver: D) -> Self {
        Self {
            driver: Arc::new(driver),
        }
    }
}

#[async_trait]
impl<D: Driver> Subject for Postgres<D> {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn offers(&self, _: Need) -> bool {
        true
    }

    async fn fixture(&self, place: Place) -> Result<Arc<dyn Fixture>, Problem> {
        let site = place::prepare(place).await?;
        let fixture = OnPostgres::new(Arc::clone(&self.driver), site)?;
        if !matches!(place, Place::Empty | Place::Standby | Place::WrongPassword) {
            fixture.migrate().await?;
        }
        Ok(Arc::new(fixture))
    }

    async fn join(&self, ticket: &str) -> Result<Arc<dyn Fixture>, Problem> {
        Ok(Arc::new(OnPostgres::join(
            Arc::clone(&self.driver),
            ticket,
        )?))
    }
}
