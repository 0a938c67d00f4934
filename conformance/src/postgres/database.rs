//! A fixture on `PostgreSQL`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::suite::driver::Operation;
use lockapi::suite::lease::Peeked;
use lockapi::suite::limit::Level;
use lockapi::suite::queue::ExpireJobs;
use lockapi::{Backend, LockId, MIGRATIONS, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::Driver;
use super::address::Address;
use super::observer::{Observer, literal};
use super::place::Site;
use crate::accounts::Accounts;
use crate::cluster::{Cluster, StopMode};
use crate::face::off_runtime;
use crate::fixture::{Fault, Fixture, Jobs, Locks, Problem, Transaction, lease_of, sweep};
use crate::patience::eventually;

/// A namespace in a database of a server.
pub(super) struct OnPostgres {
    drivers: Vec<Arc<dyn Driver>>,
    /// Whose turn it is to connect.
    turn: AtomicUsize,
    namespace: String,
    observer: Observer,
    /// Looks at the server, which may serve several databases.
    server: Observer,
    site: Arc<Site>,
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

    fn with(
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

    fn driver(&self) -> &dyn Driver {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &*self.drivers[turn % self.drivers.len()]
    }

    /// The server's sessions of all its backends, and of its transactions.
    fn ours(&self) -> String {
        let application = &self.site.address.application;
        let (own, suffixed) = (
            literal(application),
            literal(&format!("{application} lockapi")),
        );
        format!("pg_stat_activity WHERE application_name IN ({own}, {suffixed})")
    }

    fn options(&self, options: BackendOptions) -> BackendOptions {
        options.namespace(&self.namespace)
    }

    /// Makes everything in the namespace older by so many microseconds.
    async fn shift(&self, micros: i64) {
        let namespace = literal(&self.namespace);
        self.observer
            .rows(format!(
                "UPDATE lockapi.lease
                    SET acquired_at = acquired_at - {micros} * interval '1 microsecond',
                        renewed_at = renewed_at - {micros} * interval '1 microsecond',
                        held_until = held_until - {micros} * interval '1 microsecond',
                        expires_at = expires_at - {micros} * interval '1 microsecond',
                        released_at = released_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.rate_limit
                    SET tat = tat - {micros}::int8 * 1000, at = at - {micros}::int8 * 1000,
                        started = started - {micros}::int8 * 1000,
                        blocked_until = blocked_until - {micros}::int8 * 1000,
                        due = due - {micros}::int8 * 1000
                  WHERE namespace = {namespace};
                 UPDATE lockapi.rate_reservation
                    SET at = at - {micros}::int8 * 1000, expires = expires - {micros}::int8 * 1000
                  WHERE namespace = {namespace}"
            ))
            .await;
        self.observer
            .rows(format!(
                "WITH ended AS (
                     UPDATE lockapi.job_archive SET completed_at = completed_at - {micros} * interval '1 microsecond',
                                                   expires_at = expires_at - {micros} * interval '1 microsecond'
                      WHERE namespace = {namespace}
                 ), keys AS (
                     UPDATE lockapi.push_key SET created_at = created_at - {micros} * interval '1 microsecond'
                      WHERE namespace = {namespace}
                 )
                 UPDATE lockapi.job
                    SET run_at = run_at - {micros} * interval '1 microsecond',
                        created_at = created_at - {micros} * interval '1 microsecond',
                        started_at = started_at - {micros} * interval '1 microsecond',
                        lease_until = lease_until - {micros} * interval '1 microsecond',
                        expires_at = expires_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace}"
            ))
            .await;
        self.observer
            .rows(format!(
                "UPDATE lockapi.lock_name SET seen_at = seen_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.lock_note SET since = since - {micros} * interval '1 microsecond'
                  WHERE backend IN (SELECT backend FROM lockapi.lock_session WHERE namespace = {namespace})"
            ))
            .await;
        // The time that a run was due is in its key: all leave before the first comes back.
        self.observer
            .rows(format!(
                "UPDATE lockapi.task SET next_at = next_at - {micros} * interval '1 microsecond',
                                        changed_at = changed_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.task_run
                    SET fired_at = fired_at - {micros} * interval '1 microsecond',
                        fire_at = fire_at - interval '5000 years'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.task_run
                    SET fire_at = fire_at + interval '5000 years' - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace}"
            ))
            .await;
    }

    async fn with_server(&self, act: fn(&mut Cluster)) {
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

impl OnPostgres {
    /// Sets the clock of a server that has one which can be set.
    fn sets_clock(&self, by: Duration, ahead: bool) -> bool {
        let Some(own) = &self.site.own else {
            return false;
        };
        let cluster = own.lock().unwrap_or_else(PoisonError::into_inner);
        if cluster.has_clock() {
            cluster.set_clock(by, ahead).expect("the clock is set");
        }
        cluster.has_clock()
    }
}

#[async_trait]
impl Fixture for OnPostgres {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    async fn sibling(&self) -> std::result::Result<Arc<dyn Fixture>, Problem> {
        let namespace = format!("n{:016x}", fastrand::u64(..));
        let (drivers, site) = (self.drivers.clone(), Arc::clone(&self.site));
        let sibling = Self::with(drivers, site, namespace)?;
        // Where there are two drivers, the other one begins.
        sibling.turn.store(1, Ordering::Relaxed);
        Ok(Arc::new(sibling))
    }

    async fn backend(&self, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        let url = self.site.address.url();
        self.driver().connect(&url, self.options(options)).await
    }

    async fn backend_beside_full_pool(
        &self,
        options: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        let url = self.site.address.url();
        self.driver()
            .connect_beside_full_pool(&url, self.options(options))
            .await
    }

    async fn begin(&self) -> Option<Box<dyn Transaction>> {
        Some(self.driver().begin(&self.site.address.url()).await)
    }

    async fn accounts(&self) -> Option<Box<dyn Accounts>> {
        let url = self.site.address.url();
        self.driver().accounts(&url).await
    }

    async fn elapse(&self, time: Duration) {
        self.shift(time.as_micros().try_into().expect("a time"))
            .await;
    }

    async fn limit(&self, key: &str) -> Option<Level> {
        let (namespace, key) = (literal(&self.namespace), literal(key));
        let row = self
            .observer
            .rows(format!(
                "SELECT at, tat, coalesce(started, 0), span, used, before,
                        coalesce(blocked_until, 0), reserved, slide, span_before
                   FROM lockapi.rate_limit
                  WHERE namespace = {namespace} AND key = {key}"
            ))
            .await
            .pop()?;
        let number = |text: &str| text.parse::<i64>().expect("a number");
        Some(Level {
            at: number(&row[0]),
            tat: number(&row[1]),
            started: number(&row[2]),
            span: number(&row[3]),
            used: number(&row[4]),
            before: number(&row[5]),
            blocked_until: number(&row[6]),
            reserved: number(&row[7]),
            slide: number(&row[8]),
            span_before: number(&row[9]),
        })
    }

    async fn set_clock_ahead(&self, by: Duration) {
        if self.sets_clock(by, true) {
            return;
        }
        // What was written before is older by a clock that was set ahead.
        self.elapse(by).await;
        // The floor stays: ids of real times are below it.
        let (namespace, millis) = (literal(&self.namespace), by.as_millis());
        self.observer
            .rows(format!(
                "UPDATE lockapi.id_worker
                    SET claimed_at = claimed_at - {millis} * interval '1 millisecond',
                        renewed_at = renewed_at - {millis} * interval '1 millisecond',
                        expires_at = expires_at - {millis} * interval '1 millisecond'
                  WHERE namespace = {namespace}"
            ))
            .await;
    }

    async fn set_clock_back(&self, by: Duration) {
        if self.sets_clock(by, false) {
            return;
        }
        // Compared with a clock that was set back, what it wrote before is later.
        let micros: i64 = by.as_micros().try_into().expect("a time");
        self.shift(-micros).await;
        let (namespace, millis) = (literal(&self.namespace), by.as_millis());
        self.observer
            .rows(format!(
                "UPDATE lockapi.id_worker
                    SET floor = floor + {millis},
                        claimed_at = claimed_at + {millis} * interval '1 millisecond',
                        renewed_at = renewed_at + {millis} * interval '1 millisecond',
                        expires_at = expires_at + {millis} * interval '1 millisecond'
                  WHERE namespace = {namespace}"
            ))
            .await;
    }

    async fn id_workers(&self, name: &str) -> usize {
        let (namespace, name) = (literal(&self.namespace), literal(name));
        self.observer
            .value(format!(
                "SELECT count(*) FROM lockapi.id_worker
                  WHERE namespace = {namespace} AND name = {name} AND token <> 0
                    AND expires_at > clock_timestamp()"
            ))
            .await
            .parse()
            .expect("a count")
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn sever(&self) {
        let sessions = self.ours();
        let ended = self
            .server
            .rows(format!(
                "SELECT pg_terminate_backend(pid), pid FROM {sessions}"
            ))
            .await;
        let ended: Vec<_> = ended.iter().map(|row| row[1].as_str()).collect();
        let ended = ended.join(",");
        if ended.is_empty() {
            return;
        }
        eventually("the sessions end", async || {
            let left = format!("SELECT count(*) FROM {sessions} AND pid IN ({ended})");
            self.server.value(left).await == "0"
        })
        .await;
    }

    async fn set_reachable(&self, reachable: bool) {
        self.with_server(if reachable {
            |server| server.start().expect("the server starts")
        } else {
            |server| server.stop(StopMode::Fast).expect("the server stops")
        })
        .await;
    }

    async fn break_next(&self, fault: Fault, times: u32) {
        let relay = self.site.relay.as_ref().expect("a relay");
        relay.arm(fault, times);
    }

    async fn mend(&self) -> u32 {
        self.site.relay.as_ref().expect("a relay").disarm()
    }

    async fn set_silent(&self, silent: bool) {
        let sql = format!("SELECT pid FROM {}", self.ours());
        let signal = if silent { Signal::STOP } else { Signal::CONT };
        for pid in self.server.rows(sql).await.concat() {
            let pid = pid.parse().ok().and_then(Pid::from_raw);
            // It may have ended meanwhile.
            let _sent = kill_process(pid.expect("a process"), signal);
        }
    }

    async fn crash(&self) {
        self.with_server(|server| {
            server.stop(StopMode::Immediate).expect("the server stops");
            server.start().expect("the server starts");
        })
        .await;
    }

    async fn locks(&self, lock: LockId) -> Locks {
        let (class, object) = ((lock.key >> 32) & 0xffff_ffff, lock.key & 0xffff_ffff);
        let space = if lock.pair { 2 } else { 1 };
        let rows = self
            .observer
            .rows(format!(
                "SELECT count(*) FILTER (WHERE granted), count(*) FILTER (WHERE NOT granted)
                   FROM pg_locks
                  WHERE locktype = 'advisory' AND classid = {class} AND objid = {object}
                    AND objsubid = {space}
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ))
            .await
            .concat();
        let count = |at: usize| rows[at].parse().expect("a count");
        Locks {
            granted: count(0),
            waiting: count(1),
        }
    }

    async fn lease(&self, key: &str) -> Option<Peeked> {
        lease_of(self.slots(key).await)
    }

    async fn slots(&self, key: &str) -> Vec<(i64, Peeked)> {
        let (namespace, key) = (literal(&self.namespace), literal(key));
        let rows = self
            .observer
            .rows(format!(
                "SELECT slot, owner, data, fence,
                        (extract(epoch FROM clock_timestamp() - acquired_at) * 1000000)::int8,
                        (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::int8
                   FROM lockapi.lease
                  WHERE namespace = {namespace} AND key = {key}
                    AND released_at IS NULL AND expires_at > clock_timestamp()
                  ORDER BY slot"
            ))
            .await;
        let slot = |row: Vec<String>| {
            let number = |at: usize| row[at].parse().expect("a number");
            let held = Peeked {
                owner: row[1].clone(),
                data: row[2].clone(),
                fence: number(3),
                age: number(4),
                remaining: number(5),
                released: false,
            };
            (number(0), held)
        };
        rows.into_iter().map(slot).collect()
    }

    async fn jobs(&self) -> Jobs {
        let namespace = literal(&self.namespace);
        let rows = self
            .observer
            .rows(format!(
                "SELECT count(*) FILTER (WHERE token IS NULL), count(token),
                        (SELECT count(*) FROM lockapi.job_archive WHERE namespace = {namespace})
                   FROM lockapi.job WHERE namespace = {namespace}"
            ))
            .await
            .concat();
        let count = |at: usize| rows[at].parse().expect("a count");
        Jobs {
            waiting: count(0),
            delivered: count(1),
            ended: count(2),
        }
    }

    async fn lease_of_jobs(&self) -> Option<Duration> {
        let namespace = literal(&self.namespace);
        let rows = self
            .observer
            .rows(format!(
                "SELECT (extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::int8
                   FROM lockapi.job WHERE namespace = {namespace} AND lease_until IS NOT NULL
                  ORDER BY lease_until LIMIT 1"
            ))
            .await
            .concat();
        let micros: i64 = rows.first()?.parse().expect("a number");
        Some(Duration::from_micros(micros.max(0).unsigned_abs()))
    }

    async fn expire_jobs(&self) {
        let (namespace, sql) = (literal(&self.namespace), ExpireJobs::STATEMENT.sql);
        let ExpireJobs {
            most,
            bytes,
            keep_dead,
            ..
        } = sweep(&self.namespace);
        self.observer
            .rows(format!(
                "PREPARE expire AS {sql};
                 EXECUTE expire({namespace}, 0, 0, {most}, {bytes}, '{{}}', '{{}}', {keep_dead});
                 DEALLOCATE expire"
            ))
            .await;
    }

    async fn sessions(&self) -> usize {
        self.server
            .value(format!("SELECT count(*) FROM {}", self.ours()))
            .await
            .parse()
            .expect("a count")
    }

    async fn sql(&self, sql: &str) -> Vec<String> {
        let rows = self.observer.rows(sql).await;
        rows.into_iter().map(|mut row| row.remove(0)).collect()
    }

    fn ticket(&self) -> String {
        [
            self.namespace.clone(),
            self.site.address.url(),
            self.site.direct.url(),
        ]
        .join("\n")
    }
}
