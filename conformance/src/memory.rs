//! The backend in memory, as a subject of the suite.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockapi::BackendOptions;
use lockapi::driver::{Connection, Connector, Mode};
use lockapi::engine::ManualClock;
use lockapi::memory::Database;
use lockapi::suite::lease::Peeked;
use lockapi::suite::limit::Level;
use lockapi::suite::queue::{FoldHistory, SweepHistory};
use lockapi::{Backend, LockId, Result};

use crate::accounts::Accounts;
use crate::fixture::{
    Fault, Fixture, Jobs, Locks, Need, Place, Problem, Subject, Transaction, lease_of, sweep,
};

/// How often the clock of a fixture follows the real one.
const TICK: Duration = Duration::from_millis(2);

/// [`lockapi::memory`], on a clock that follows the real one and can be moved ahead.
#[derive(Clone, Copy, Debug)]
pub struct Memory;

#[async_trait]
impl Subject for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn offers(&self, need: Need) -> bool {
        matches!(need, Need::Futures | Need::OwnConnections | Need::FailOver)
    }

    async fn fixture(&self, _: Place) -> Result<Arc<dyn Fixture>, Problem> {
        let clock = ManualClock::default();
        let fixture = Arc::new(InMemory {
            namespace: format!("n{:016x}", fastrand::u64(..)),
            database: Database::with_clock(&clock),
            clock,
        });
        tick(Arc::downgrade(&fixture));
        Ok(fixture)
    }

    async fn join(&self, _: &str) -> Result<Arc<dyn Fixture>, Problem> {
        Err("a database in memory cannot be joined by another process".into())
    }
}

/// Lets the clock follow the real one for as long as the fixture lives.
fn tick(fixture: Weak<InMemory>) {
    std::thread::spawn(move || {
        let mut last = Instant::now();
        loop {
            std::thread::sleep(TICK);
            let Some(fixture) = fixture.upgrade() else {
                return;
            };
            let now = Instant::now();
            fixture.clock.leap(now - last);
            last = now;
        }
    });
}

struct InMemory {
    namespace: String,
    database: Database,
    clock: ManualClock,
}

#[async_trait]
impl Fixture for InMemory {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    async fn sibling(&self) -> Result<Arc<dyn Fixture>, Problem> {
        Ok(Arc::new(Self {
            namespace: format!("n{:016x}", fastrand::u64(..)),
            database: self.database.clone(),
            clock: self.clock.clone(),
        }))
    }

    async fn backend(&self, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        let options = options.namespace(&self.namespace);
        let backend = self.database.connect_with(options).await?;
        backend.migrate().await?;
        Ok(backend)
    }

    async fn backend_beside_full_pool(
        &self,
        _: BackendOptions,
    ) -> Result<Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)>> {
        Ok(None)
    }

    async fn begin(&self) -> Option<Box<dyn Transaction>> {
        None
    }

    async fn accounts(&self) -> Option<Box<dyn Accounts>> {
        None
    }

    async fn elapse(&self, time: Duration) {
        self.clock.leap(time);
    }

    async fn set_clock_ahead(&self, by: Duration) {
        self.database.set_clock_ahead(by);
    }

    async fn set_clock_back(&self, by: Duration) {
        self.database.set_clock_back(by);
    }

    async fn id_workers(&self, name: &str) -> usize {
        self.database
            .inspect(|model| model.id_workers(&self.namespace, name))
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    async fn sever(&self) {
        self.database.sever();
    }

    async fn set_reachable(&self, reachable: bool) {
        self.database.set_reachable(reachable);
    }

    async fn break_next(&self, _: Fault, _: u32) {
        unreachable!("no relay in memory")
    }

    async fn mend(&self) -> u32 {
        unreachable!("no relay in memory")
    }

    async fn set_silent(&self, silent: bool) {
        if silent {
            self.database.silence_sessions();
        } else {
            self.database.set_silent(false);
        }
    }

    async fn crash(&self) {
        self.database.sever();
    }

    async fn cut_replication(&self) {
        self.database.cut_replication();
    }

    async fn fail_over(&self) {
        self.database.fail_over();
    }

    async fn share_sessions(&self) {
        unreachable!("no proxy in memory")
    }

    async fn locks(&self, lock: LockId) -> Locks {
        self.database.inspect(|model| Locks {
            granted: model.holders(lock),
            waiting: model.waiting(lock),
        })
    }

    async fn lease(&self, key: &str) -> Option<Peeked> {
        lease_of(self.slots(key).await)
    }

    async fn slots(&self, key: &str) -> Vec<(i64, Peeked)> {
        self.database
            .inspect(|model| model.slots_held(&self.namespace, key))
    }

    async fn jobs(&self) -> Jobs {
        self.database.inspect(|model| {
            let (waiting, delivered, ended) = model.jobs().count_all(&self.namespace);
            Jobs {
                waiting,
                delivered,
                ended,
            }
        })
    }

    async fn lease_of_jobs(&self) -> Option<Duration> {
        let left = self.database.inspect(|model| {
            model
                .jobs()
                .first_end(&self.namespace)
                .map(|end| end - model.now)
        });
        left.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs()))
    }

    async fn expire_jobs(&self) {
        let session = Connector::connect(&self.database, Mode::Direct).await;
        let mut session = session.expect("a session");
        let swept = session.perform(&[sweep(&self.namespace)]).await;
        swept.expect("swept");
    }

    async fn sweep_history(&self) {
        let session = Connector::connect(&self.database, Mode::Direct).await;
        let mut session = session.expect("a session");
        let (after, most) = (Default::default(), 1000);
        let folded = session.perform(&[FoldHistory { after, most }]).await;
        folded.expect("folded");
        let after = Default::default();
        let swept = session.perform(&[SweepHistory { after, most }]).await;
        swept.expect("swept");
    }

    async fn history_rows(&self) -> (usize, usize) {
        self.database.inspect(|model| model.jobs().history.rows())
    }

    async fn limit(&self, key: &str) -> Option<Level> {
        self.database
            .inspect(|model| model.limit(&self.namespace, key))
    }

    async fn sessions(&self) -> usize {
        self.database.sessions()
    }

    async fn sql(&self, _: &str) -> Vec<String> {
        unreachable!("no SQL in memory")
    }

    fn ticket(&self) -> String {
        unreachable!("no processes in memory")
    }
}
