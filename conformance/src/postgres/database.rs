//! A fixture on `PostgreSQL`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use lockapi::{BackendOptions, MIGRATIONS};

use super::Driver;
use super::address::Address;
use super::observer::{Observer, literal};
use super::place::Site;
use crate::cluster::Cluster;
use crate::face::off_runtime;
use crate::fixture::Problem;

/// A namespace in a database of a server.
pub(super) struct OnPostgres {
    pub(super) drivers: Vec<Arc<dyn Driver>>,
    /// Whose turn it is to connect.
    pub(super) turn: AtomicUsize,
    pub(super) namespace: String,
    pub(super) observer: Observer,
    /// Looks at the server, which may serve several databases.
    pub(super) server: Observer,
    pub(super) site: Arc<Site>,
}

impl OnPostgres {
    pub(super) fn new(
        drivers: &[Arc<dyn Driver>],
        site: Site,
    ) -> std::result::Result<Self, Problem> {
        let namespace = format!("n{:016x}", fastrand::u64(..));
        Self::with(drivers.to_vec(), Arc::new(site), namespace)
    }

    pub(super) fn join(
        drivers: &[Arc<dyn Driver>],
        ticket: &str,
    ) -> std::result::Result<Self, Problem> {
        let parts: Vec<_> = ticket.split('\n').collect();
        let [namespace, address, direct] = parts[..] else {
            return Err("not a ticket".into());
        };
        let site = Site {
            address: Address::parse(address)?,
            direct: Address::parse(direct)?,
            own: None,
            cleanup: None,
            proxy: None,
            relay: None,
        };
        // Where there are two, the other one begins.
        let drivers = drivers.iter().rev().map(Arc::clone).collect();
        Self::with(drivers, Arc::new(site), namespace.to_owned())
    }

    pub(super) fn with(
        drivers: Vec<Arc<dyn Driver>>,
        site: Arc<Site>,
        namespace: String,
    ) -> std::result::Result<Self, Problem> {
        let inside = Address {
            database: site.address.database.clone(),
            ..site.direct.clone()
        };
        Ok(Self {
            drivers,
            turn: AtomicUsize::new(0),
            namespace,
            observer: Observer::new(inside.config()?),
            server: Observer::new(site.direct.config()?),
            site,
        })
    }

    /// Applies the migrations, as somebody who may.
    pub(super) async fn migrate(&self) -> std::result::Result<(), Problem> {
        if self.is_migrated().await {
            return Ok(());
        }
        let url = Address {
            database: self.site.address.database.clone(),
            ..self.site.direct.clone()
        }
        .url();
        let backend = self.drivers[0]
            .connect(&url, BackendOptions::default())
            .await?;
        Ok(backend.migrate().await?)
    }

    /// Saves most cases a backend that would find nothing to do.
    async fn is_migrated(&self) -> bool {
        let texts = MIGRATIONS.iter();
        let texts = texts.map(|one| format!("({}, {})", one.version, literal(one.sql)));
        let applied = format!(
            "SELECT count(*) FROM lockapi.migration AS m JOIN (VALUES {}) AS v (version, text)
                 ON m.version = v.version
                AND m.checksum = encode(sha256(convert_to(v.text, 'UTF8')), 'hex')",
            texts.collect::<Vec<_>>().join(", ")
        );
        // Where the table is missing the question fails.
        let applied = self.observer.try_rows(applied).await.unwrap_or_default();
        applied.concat() == [MIGRATIONS.len().to_string()]
    }

    pub(super) fn driver(&self) -> &dyn Driver {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &*self.drivers[turn % self.drivers.len()]
    }

    /// The server's sessions of all its backends, and of its transactions.
    pub(super) fn ours(&self) -> String {
        let application = &self.site.address.application;
        let (own, suffixed) = (
            literal(application),
            literal(&format!("{application} lockapi")),
        );
        format!("pg_stat_activity WHERE application_name IN ({own}, {suffixed})")
    }

    pub(super) fn options(&self, options: BackendOptions) -> BackendOptions {
        options.namespace(&self.namespace)
    }

    pub(super) async fn with_server(&self, act: fn(&mut Cluster)) {
        let site = Arc::clone(&self.site);
        off_runtime(move || {
            let own = site.own.as_ref().expect("a server of the case's own");
            act(&mut own.lock().unwrap_or_else(PoisonError::into_inner));
        })
        .await;
    }
}

impl Drop for OnPostgres {
    fn drop(&mut self) {
        if Arc::strong_count(&self.site) == 1
            && let Some(cleanup) = &self.site.cleanup
        {
            // Nobody waits for it; a server that has gone has nothing left to clean.
            for statement in cleanup.split("; ") {
                drop(self.server.submit(statement));
            }
        }
    }
}
