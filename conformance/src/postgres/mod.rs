//! Backends on `PostgreSQL`, as subjects of the suite.
//!
//! [`Postgres`] is the same for all drivers; what differs is in a [`Driver`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::{Backend, Result};

use crate::accounts::Accounts;
use crate::fixture::{Fixture, Need, Place, Problem, Subject, Transaction};

mod address;
mod database;
mod fixture;
mod observer;
mod place;
mod relay;
mod time;

use database::OnPostgres;

/// How a backend crate connects.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// The name of the backend.
    fn name(&self) -> &'static str;

    /// Whether a need is met; everything unless said otherwise. What the driver cannot have, such
    /// as [`Need::Pool`], turns the cases that need it into ignored ones.
    fn offers(&self, _: Need) -> bool {
        true
    }

    /// Connects a backend to a URL.
    ///
    /// # Errors
    /// Those of the backend.
    async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>>;

    /// Connects a backend with a pool of one connection, which is in use as long as the second
    /// value lives; `None`, as unless implemented, where programs have no pool.
    ///
    /// # Errors
    /// Those of the backend.
    async fn connect_beside_full_pool(
        &self,
        _url: &str,
        _options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        Ok(None)
    }

    /// Opens accounts of the user; `None`, as unless implemented, where the backend crate has nothing
    /// for rows of the program. Such a driver does not offer [`Need::Accounts`].
    async fn accounts(&self, _url: &str) -> Option<Box<dyn Accounts>> {
        None
    }

    /// Begins a transaction on a connection of the user.
    async fn begin(&self, url: &str) -> Box<dyn Transaction>;
}

/// A backend on `PostgreSQL`, by its driver, or two that share a database.
#[derive(Clone)]
pub struct Postgres {
    name: String,
    drivers: Vec<Arc<dyn Driver>>,
    /// What [`Place::Shared`] is.
    shared: Place,
}

/// Names what the cases of the shared database run on: nothing, or
///
/// - `hostile`: a role whose settings are as unhelpful as settings can be;
/// - `proxy`: a transaction-pooling proxy, on which cases with session locks cannot succeed.
///
/// Transactions of the program have such settings, or their prepared statements, too, so cases with
/// such transactions are ignored.
const SHARED_PLACE: &str = "LOCKAPI_PLACE";

fn shared_place() -> Place {
    match std::env::var(SHARED_PLACE).unwrap_or_default().as_str() {
        "" => Place::Shared,
        "hostile" => Place::HostileSuperuser,
        "proxy" => Place::Proxy,
        other => panic!("{SHARED_PLACE} is `{other}`; it may be `hostile` or `proxy`"),
    }
}

impl Postgres {
    /// The subject for a driver.
    pub fn new(driver: impl Driver) -> Self {
        Self::of(vec![Arc::new(driver)])
    }

    /// The subjects in which two drivers share a database: all ordered pairs of different ones.
    ///
    /// The first driver connects the first backend of a case, the second the next, and so on by
    /// turns; in other processes it is the other way round.
    pub fn pairs(drivers: &[Arc<dyn Driver>]) -> Vec<Arc<dyn Subject>> {
        let count = drivers.len();
        let pairs = (0..count).flat_map(|first| (0..count).map(move |second| (first, second)));
        pairs
            .filter(|(first, second)| first != second)
            .map(|(first, second)| {
                let pair = [first, second].map(|at| Arc::clone(&drivers[at]));
                Arc::new(Self::of(pair.into())) as Arc<dyn Subject>
            })
            .collect()
    }

    fn of(drivers: Vec<Arc<dyn Driver>>) -> Self {
        let names: Vec<_> = drivers.iter().map(|driver| driver.name()).collect();
        Self {
            name: names.join("+"),
            drivers,
            shared: shared_place(),
        }
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.name)
    }
}

#[async_trait]
impl Subject for Postgres {
    fn name(&self) -> &str {
        &self.name
    }

    fn offers(&self, need: Need) -> bool {
        let transactions = matches!(need, Need::Transactions | Need::Accounts);
        (self.shared == Place::Shared || !transactions)
            && self.drivers.iter().all(|driver| driver.offers(need))
    }

    async fn fixture(&self, place: Place) -> Result<Arc<dyn Fixture>, Problem> {
        let place = match place {
            Place::Shared => self.shared,
            place => place,
        };
        if matches!(
            place,
            Place::PoorRole
                | Place::HostileRole
                | Place::HostileSuperuser
                | Place::GermanRole
                | Place::DecoyRole
                | Place::HostileProxy
        ) {
            // The tables that the role is given rights on.
            let site = place::prepare(Place::Shared).await?;
            OnPostgres::new(&self.drivers, site)?.migrate().await?;
        }
        let site = place::prepare(place).await?;
        let fixture = OnPostgres::new(&self.drivers, site)?;
        if !matches!(
            place,
            Place::Empty | Place::Standby | Place::NoPrimary | Place::WrongPassword
        ) {
            fixture.migrate().await?;
        }
        Ok(Arc::new(fixture))
    }

    async fn join(&self, ticket: &str) -> Result<Arc<dyn Fixture>, Problem> {
        Ok(Arc::new(OnPostgres::join(&self.drivers, ticket)?))
    }
}
