//! What the suite does to a database of a server, and sees there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::suite::driver::Operation;
use lockapi::suite::lease::Peeked;
use lockapi::suite::limit::Level;
use lockapi::suite::queue::{ExpireJobs, FoldHistory, SweepHistory};
use lockapi::{Backend, LockId, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::database::OnPostgres;
use super::observer::literal;
use crate::accounts::Accounts;
use crate::cluster::StopMode;
use crate::fixture::{Fault, Fixture, Jobs, Locks, Place, Problem, Transaction, lease_of, sweep};
use crate::patience::eventually;

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
        if super::shared_place() != Place::Shared {
            return None;
        }
        Some(self.driver().begin(&self.site.address.url()).await)
    }

    async fn accounts(&self) -> Option<Box<dyn Accounts>> {
        let url = self.site.address.url();
        self.driver().accounts(&url).await
    }

    async fn elapse(&self, time: Duration) {
        self.older(time).await;
    }

    async fn limit(&self, key: &str) -> Option<Level> {
        let (namespace, key) = (literal(&self.namespace), literal(key));
        let row = self
            .observer
            .rows(format!(
                "SELECT at, tat, coalesce(started, 0), span, used, before,
                        coalesce(blocked_until, 0), reserved, slide, span_before,
                        withheld_from, withheld
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
            withheld_from: number(&row[10]),
            withheld: number(&row[11]),
        })
    }

    async fn set_clock_ahead(&self, by: Duration) {
        self.clock_ahead(by).await;
    }

    async fn set_clock_back(&self, by: Duration) {
        self.clock_back(by).await;
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

    async fn cut_replication(&self) {
        self.with_server(|server| server.cut_replication().expect("a standby is made"))
            .await;
    }

    async fn fail_over(&self) {
        self.with_server(|server| server.fail_over().expect("the standby takes over"))
            .await;
    }

    async fn share_sessions(&self) {
        let proxy = self.site.proxy.as_ref().expect("a proxy");
        proxy.set_mode("transaction").expect("the mode is changed");
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

    async fn sweep_history(&self) {
        let (namespace, fold) = (literal(&self.namespace), FoldHistory::STATEMENT.sql);
        let sweep = SweepHistory::STATEMENT.sql;
        self.observer
            .rows(format!(
                "PREPARE fold AS {fold};
                 EXECUTE fold({namespace}, '', 0, '', 0, 1000);
                 DEALLOCATE fold;
                 PREPARE sweep AS {sweep};
                 EXECUTE sweep({namespace}, '', false, 0, '', 1000);
                 DEALLOCATE sweep"
            ))
            .await;
    }

    async fn history_rows(&self) -> (usize, usize) {
        let namespace = literal(&self.namespace);
        let count = async |table| {
            let query =
                format!("SELECT count(*) FROM lockapi.{table} WHERE namespace = {namespace}");
            self.server.value(query).await.parse().expect("a number")
        };
        (count("job_history_part").await, count("job_history").await)
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
