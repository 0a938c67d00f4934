//! Statements whose answer is lost while the server goes on with them.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join3;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::backend::Backend;
use crate::blocking::block_on;
use crate::driver::{
    self, Call, Connection, Connector, Listener, Mode, Row, Rows, Script, Type, Value,
};
use crate::engine::{BackendOptions, start};
use crate::error::{ErrorKind, Failure};
use crate::lease::LeaseOptions;
use crate::limit::{Basis, Outage, PermitRequest, Policy, Quota};
use crate::memory::{Database, Session};
use crate::queue::{Claim, Job, JobResult};

/// What happens to the next runs of a statement.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<(&'static str, Run)>>>, Sent);

/// The statements that were sent with numbers in this parameter, and those numbers.
type Sent = Arc<Mutex<Vec<(&'static str, Vec<i64>)>>>;

/// What is recorded: who is cancelled, for how long is renewed, whose results are read, and how many jobs are claimed.
const RECORDED: [(&str, usize); 4] = [
    ("engine.cancel", 0),
    ("lease.renew", 4),
    ("queue.read_result", 0),
    (CLAIM, 8),
];

const CLAIM: &str = "queue.complete_and_claim";
/// An attempt to connect.
const CONNECT: &str = "connect";

enum Run {
    /// The connection breaks.
    Cut,
    /// It is carried out, and its answer is lost.
    Lost,
    /// It is carried out, and answered with these rows.
    Answered(Rows),
    /// It is not answered.
    Silent,
    /// It tells that it has arrived, and takes long.
    Slow(Sender<usize>, Arc<AtomicUsize>),
    /// It tells that it has arrived, and is carried out when it is told to.
    Gate(Sender<()>, Receiver<()>),
}

impl Runs {
    fn next(&self, statement: &str) -> Option<Run> {
        let mut runs = self.0.lock().unwrap();
        let first = runs.iter().position(|(name, _)| *name == statement)?;
        Some(runs.remove(first).1)
    }

    fn add(&self, statement: &'static str, run: Run) {
        self.0.lock().unwrap().push((statement, run));
    }

    fn is_to_come(&self, statement: &str) -> bool {
        let runs = self.0.lock().unwrap();
        runs.iter().any(|(name, _)| *name == statement)
    }

    fn sent(&self, statement: &str) -> Vec<Vec<i64>> {
        let sent = self.1.lock().unwrap();
        let of = sent.iter().filter(|(name, _)| *name == statement);
        of.map(|(_, numbers)| numbers.clone()).collect()
    }

    /// The answer is lost, and it commits after the repetition, which meets locked rows, has failed.
    fn commits_late(&self, statement: &'static str, repetition: Row) {
        self.add(statement, Run::Cut);
        self.add(statement, Run::Answered(vec![repetition]));
    }
}

struct Late(Database, Runs);

struct OpenConnection(Session, Runs);

impl Connector for Late {
    type Connection = OpenConnection;
    type Listener = OpenConnection;

    async fn connect(&self, mode: Mode) -> Result<OpenConnection, Failure> {
        if let Some(Run::Silent) = self.1.next(CONNECT) {
            return pending().await;
        }
        let session = Connector::connect(&self.0, mode).await?;
        Ok(OpenConnection(session, self.1.clone()))
    }

    async fn listener(&self) -> Result<OpenConnection, Failure> {
        Connector::connect(self, Mode::Direct).await
    }

    fn spawn(&self, name: &'static str, task: driver::BackgroundTask) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(task)),
            Err(_) => self.0.spawn(name, task),
        }
    }
}

impl Connection for OpenConnection {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let name = call.name();
        if let Some((_, at)) = RECORDED.iter().find(|one| one.0 == name) {
            let numbers = match &call.query().1[*at] {
                Value::Ints(numbers) => numbers.clone(),
                Value::Int(number) => vec![*number],
                other => panic!("{name}: {other:?}"),
            };
            self.1.1.lock().unwrap().push((name, numbers));
        }
        match self.1.next(name) {
            None => self.0.run(call).await,
            Some(Run::Cut) => Err(Failure::statement(None, true, "cut by the test")),
            Some(Run::Lost) => {
                let lost = Failure::statement(None, true, "cut by the test");
                self.0.run(call).await.and(Err(lost))
            }
            Some(Run::Answered(rows)) => self.0.run(call).await.map(|_| rows),
            Some(Run::Silent) => pending().await,
            Some(Run::Slow(arrived, told)) => {
                arrived.send(told.load(Ordering::Relaxed)).unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.0.run(call).await
            }
            Some(Run::Gate(arrived, open)) => {
                arrived.send(()).unwrap();
                open.recv().unwrap();
                self.0.run(call).await
            }
        }
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.script(script).await
    }
}

impl Listener for OpenConnection {
    async fn next(&mut self) -> Result<String, Failure> {
        self.0.next().await
    }
}

fn connect() -> (Arc<dyn Backend>, Database, Runs) {
    let (database, runs) = (Database::new(), Runs::default());
    let late = Late(database.clone(), runs.clone());
    let backend = block_on(start("late", late, BackendOptions::default())).unwrap();
    (backend, database, runs)
}

fn hour() -> LeaseOptions {
    LeaseOptions::new(Duration::from_secs(3600)).renewed_by_hand()
}

fn held(database: &Database) -> Vec<i64> {
    database.inspect(|model| {
        let held = model.all_leases().filter(|(.., held)| held.is_some());
        held.map(|(_, _, slot, _)| slot).collect()
    })
}

fn soon_free(database: &Database) {
    let start = Instant::now();
    while !held(database).is_empty() {
        let held = held(database);
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "held by nobody: {held:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_check_that_its_own_first_try_refuses_is_not_refused() {
    let (backend, _, runs) = connect();
    let cells = Quota::per_hour(2).burst(2);
    for (key, quota, statement) in [
        ("cells", cells, "limit.take"),
        ("window", Quota::per_hour(2).fixed_window(), "limit.charge"),
        ("several", cells, "limit.charge"),
    ] {
        let limiter = backend.rate_limiter(quota).unwrap();
        let requests = [key, "other"].map(PermitRequest::new);
        let check = || {
            if key == "several" {
                return block_on(limiter.check_all(&requests)).map(|all| all.is_admitted());
            }
            block_on(limiter.check(key)).map(|one| one.is_admitted())
        };
        assert!(check().unwrap());
        runs.add(statement, Run::Lost);
        let error = check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{key}: {error}");
        assert!(!runs.is_to_come(statement));
        assert!(!check().unwrap(), "it had taken the last one");
    }
}

#[test]
fn a_lost_answer_that_was_repeated_is_no_outage() {
    let (backend, _, runs) = connect();
    let policy = Policy::new(Quota::per_hour(1)).outage(Outage::Open);
    let limiter = backend.rate_limiter(policy).unwrap();
    runs.add("limit.take", Run::Lost);
    let unknown = block_on(limiter.check("door")).unwrap();
    assert_eq!(unknown.basis(), Basis::Outage, "the policy decides");
    let next = block_on(limiter.check("door")).unwrap();
    assert_eq!(next.basis(), Basis::Database);
    assert!(!next.is_admitted());
    // What only reads has taken nothing.
    let closed = backend.rate_limiter(Quota::per_hour(1)).unwrap();
    runs.add("limit.level", Run::Lost);
    assert!(!block_on(closed.check("door")).unwrap().is_admitted());
    assert!(!runs.is_to_come("limit.level"));
}

#[test]
fn a_lease_that_a_first_try_gets_after_its_repetition_was_refused_is_given_back() {
    let (backend, database, runs) = connect();
    let null = Value::Null(Type::Int);
    runs.commits_late(
        "lease.acquire",
        Row(vec![Value::Int(1), null, Value::Int(1)]),
    );
    let lease = backend.lease("a", hour()).unwrap();
    assert!(block_on(lease.try_acquire()).unwrap().is_none());
    assert!(runs.0.lock().unwrap().is_empty(), "it was repeated");
    soon_free(&database);
}

#[test]
fn permits_that_a_first_try_gets_after_its_repetition_was_refused_are_given_back() {
    let (backend, database, runs) = connect();
    let semaphore = backend.semaphore("a", 4, hour()).unwrap();
    // So that there are rows.
    let all = block_on(semaphore.try_acquire_many(4)).unwrap().unwrap();
    block_on(all.release()).unwrap();
    let (none, slots) = (Value::Null(Type::Int), Value::Null(Type::Ints));
    let refused = [
        Value::Int(1),
        none,
        slots,
        Value::Bool(false),
        Value::Int(1),
    ];
    runs.commits_late("lease.take", Row(refused.into()));
    assert!(block_on(semaphore.try_acquire_many(2)).unwrap().is_none());
    soon_free(&database);
}

#[test]
fn permits_that_a_first_try_gets_besides_those_of_its_repetition_are_given_back() {
    let (backend, database, runs) = connect();
    let semaphore = backend.semaphore("a", 4, hour()).unwrap();
    let all = block_on(semaphore.try_acquire_many(4)).unwrap().unwrap();
    block_on(all.release()).unwrap();
    let (fence, slots) = (Value::Int(1 << 40), Value::Ints(vec![3, 4]));
    let granted = [
        Value::Int(1),
        fence,
        slots,
        Value::Bool(false),
        Value::Null(Type::Int),
    ];
    runs.commits_late("lease.take", Row(granted.into()));
    let guard = block_on(semaphore.try_acquire_many(2)).unwrap().unwrap();
    soon_free(&database);
    drop(guard);
}

#[test]
fn what_a_repetition_got_stays_held() {
    let (backend, database, runs) = connect();
    runs.add("lease.acquire", Run::Cut);
    let lease = backend.lease("a", hour()).unwrap();
    let guard = block_on(lease.try_acquire()).unwrap().unwrap();
    // The batcher has asked for what else there is when it has answered this.
    assert!(block_on(lease.try_acquire()).unwrap().is_none());
    assert_eq!(held(&database).len(), 1);
    block_on(guard.renew()).unwrap();
}

/// The next connection that is opened is served by this process.
fn process(runs: &Runs, pid: i64) {
    let served = [
        Value::Bool(false),
        Value::Int(0),
        Value::Int(pid),
        Value::Int(1),
        Value::Bool(true),
        Value::Bool(false),
        Value::Bool(false),
    ];
    runs.add(
        "engine.session_settings",
        Run::Answered(vec![Row(served.into())]),
    );
}

fn soon_cancelled(runs: &Runs, pid: i64) {
    let start = Instant::now();
    while runs.sent("engine.cancel") != [[pid]] {
        let sent = runs.sent("engine.cancel");
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "cancelled: {sent:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_renewal_that_is_given_up_is_cancelled() {
    let (backend, _, runs) = connect();
    let options = LeaseOptions::new(Duration::from_secs(4)).renewed_by_hand();
    let lease = backend.lease("a", options).unwrap();
    let guard = block_on(lease.acquire()).unwrap();
    process(&runs, 7);
    runs.add("lease.renew", Run::Silent);
    block_on(guard.renew()).unwrap();
    assert_eq!(runs.sent("lease.renew").len(), 2, "it was repeated");
    soon_cancelled(&runs, 7);
}

#[test]
fn what_ran_on_a_connection_that_broke_is_cancelled() {
    let (backend, _, runs) = connect();
    process(&runs, 7);
    runs.add("lease.acquire", Run::Cut);
    let lease = backend.lease("a", hour()).unwrap();
    let _guard = block_on(lease.acquire()).unwrap();
    soon_cancelled(&runs, 7);
}

#[test]
fn a_short_lease_does_not_shorten_the_limit_of_a_long_one() {
    let (backend, _, runs) = connect();
    let held = |key: &str, seconds| {
        let options = LeaseOptions::new(Duration::from_secs(seconds)).renewed_by_hand();
        block_on(backend.lease(key, options).unwrap().acquire()).unwrap()
    };
    let (first, short, long, longer) = (
        held("a", 3600),
        held("b", 30),
        held("c", 3600),
        held("d", 3601),
    );
    let (arrived, arrives) = channel();
    let (open, opens) = channel();
    runs.add("lease.renew", Run::Gate(arrived, opens));
    let renewing = std::thread::spawn(move || block_on(first.renew()));
    arrives.recv().unwrap();
    let opening = async { open.send(()).unwrap() };
    let (long, (short, longer), ()) = block_on(join3(
        long.renew(),
        futures_util::future::join(short.renew(), longer.renew()),
        opening,
    ));
    long.and(short).and(longer).unwrap();
    renewing.join().unwrap().unwrap();
    let statements = runs.sent("lease.renew");
    let seconds = |it: &Vec<i64>| it.iter().map(|micros| micros / 1_000_000).collect();
    let statements: Vec<Vec<_>> = statements.iter().map(seconds).collect();
    assert_eq!(statements, [vec![3600], vec![30], vec![3600, 3601]]);
}

#[test]
fn nobody_waits_behind_a_push_of_many_jobs() {
    let (backend, _, runs) = connect();
    let queue = backend.queue("jobs").unwrap();
    let job = || Job::new("a", &1).unwrap();
    let (arrived, arrives) = channel();
    let (open, opens) = channel();
    runs.add("queue.push", Run::Gate(arrived, opens));
    let many = Arc::clone(&queue);
    let jobs = (0..300).map(|_| job()).collect();
    let pushing = std::thread::spawn(move || block_on(many.push_all(jobs)));
    arrives.recv().unwrap();
    block_on(queue.push(job())).unwrap();
    let claimed = block_on(queue.claim(&Claim::new(1))).unwrap();
    for delivery in claimed {
        block_on(delivery.ack()).unwrap();
    }
    open.send(()).unwrap();
    assert_eq!(pushing.join().unwrap().unwrap().len(), 300);
}

/// Whoever has many callers to tell has no turn before, and keeps no other kind from its own.
#[tokio::test]
async fn ten_thousand_waits_share_their_lookups_and_leave_none_behind() {
    const WAITS: usize = 10_000;
    const SECONDS: usize = 4;
    let runs = Runs::default();
    let late = Late(Database::new(), runs.clone());
    let backend = start("waits", late, BackendOptions::default()).await;
    let backend = backend.unwrap();
    let queue = backend.queue("jobs").unwrap();
    let jobs = (0..WAITS).map(|_| Job::new("a", &1).unwrap());
    let pushed = queue.push_all(jobs.collect()).await.unwrap();
    let hour = Duration::from_secs(3600);
    let mut waits = JoinSet::new();
    for job in &pushed {
        let (queue, id) = (Arc::clone(&queue), job.id);
        waits.spawn(async move { queue.wait_result::<i64>(id, hour).await.unwrap() });
    }
    let looked = || {
        let sent = runs.sent("queue.read_result");
        (sent.len(), sent.iter().map(Vec::len).sum::<usize>())
    };
    tokio::time::sleep(Duration::from_secs(SECONDS as u64)).await;
    let (statements, lookups) = looked();
    assert!(lookups >= 2 * WAITS, "{lookups} lookups");
    // The first looks go out as the callers arrive.
    assert!(lookups <= WAITS * (SECONDS + 10), "{lookups} lookups");
    assert!(statements <= 1000, "{statements} statements");
    // A completion of this process is seen before a pause is over.
    let mut claimed = queue.claim(&Claim::new(1)).await.unwrap();
    let delivery = claimed.remove(0);
    delivery.set_result(&7).unwrap();
    delivery.ack().await.unwrap();
    let done = tokio::time::timeout(Duration::from_secs(5), waits.join_next()).await;
    let done = done.unwrap().unwrap().unwrap();
    assert_eq!(done, JobResult::Value(7));
    waits.shutdown().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let left = looked();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(looked(), left, "nobody waits any more");
}

#[tokio::test]
async fn nobody_waits_while_many_callers_of_another_kind_are_told() {
    const CALLERS: usize = 100_000;
    let (runs, told) = (Runs::default(), Arc::new(AtomicUsize::new(0)));
    let late = Late(Database::new(), runs.clone());
    let backend = start("flood", late, BackendOptions::default()).await;
    let backend = backend.unwrap();
    let scarce = backend.rate_limiter(Quota::per_hour(1).fixed_window());
    let calm = backend.rate_limiter(Quota::per_second(1000));
    let (scarce, calm) = (scarce.unwrap(), calm.unwrap());
    assert!(scarce.check("flood").await.unwrap().is_admitted());
    assert!(calm.check("calm").await.unwrap().is_admitted());
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (scarce, told) = (Arc::clone(&scarce), Arc::clone(&told));
        callers.spawn(async move {
            loop {
                assert!(!scarce.check("flood").await.unwrap().is_admitted());
                told.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let (arrived, arrivals) = channel();
    for _ in 0..50 {
        // All of them wait, and the first are told.
        let before = told.load(Ordering::Relaxed);
        while told.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
        // So it has had more time than the other, whose turn is next.
        runs.add("limit.take", Run::Slow(arrived.clone(), Arc::clone(&told)));
        let before = told.load(Ordering::Relaxed);
        assert!(calm.check("calm").await.unwrap().is_admitted());
        let meanwhile = arrivals.recv().unwrap() - before;
        // Before its next statement that kind has some 12,500 callers to tell.
        assert!(meanwhile < 2000, "{meanwhile} callers were told before");
    }
}

/// What may not be repeated is not sent again because its answer could not be read: it has happened.
#[test]
fn what_was_answered_with_rows_that_cannot_be_read_is_not_sent_again() {
    let (backend, _, runs) = connect();
    let queue = backend.queue("jobs").unwrap();
    let (arrived, arrives) = channel();
    let (open, opens) = channel();
    runs.add("queue.push", Run::Gate(arrived, opens));
    let push = |text: &'static str| {
        let queue = Arc::clone(&queue);
        async move { queue.push(Job::new("a", text).unwrap()).await }
    };
    let first = std::thread::spawn({
        let push = push("first");
        move || block_on(push)
    });
    arrives.recv().unwrap();
    // These travel together.
    let nonsense = || Run::Answered(vec![Row(vec![Value::Text("?".to_owned())])]);
    runs.add("queue.push", nonsense());
    let answers = block_on(join3(push("second"), push("third"), async {
        open.send(()).unwrap();
    }));
    first.join().unwrap().unwrap();
    let claimed = block_on(queue.claim(&Claim::new(100))).unwrap();
    let texts: Vec<_> = claimed.iter().map(|one| one.payload().to_owned()).collect();
    assert_eq!(
        texts.len(),
        3,
        "{texts:?}; the callers heard {:?}, {:?}",
        answers.0.map(drop),
        answers.1.map(drop)
    );
}

/// They have waited for the attempt to connect: none waits for another one.
#[tokio::test(flavor = "multi_thread")]
async fn all_that_wait_for_a_connection_are_refused_with_it() {
    let (database, runs) = (Database::new(), Runs::default());
    let late = Late(database, runs.clone());
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    let backend = start("late", late, options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    queue.pause().await.unwrap();
    runs.add("queue.set_paused", Run::Silent);
    // One to cancel the statement, and one to repeat it.
    runs.add(CONNECT, Run::Silent);
    runs.add(CONNECT, Run::Silent);
    let paused = Arc::clone(&queue);
    let silent = tokio::spawn(async move { paused.pause().await });
    let is_sent = || !runs.is_to_come("queue.set_paused");
    until("it is under way", is_sent).await;
    let waiting = join3(queue.limit(), queue.resume(), queue.purge());
    let (silent, waiting) = futures_util::future::join(silent, waiting).await;
    assert!(silent.unwrap().is_err());
    let kind = |error: crate::Error| error.kind();
    let refused = (
        waiting.0.map_err(kind).err(),
        waiting.1.map_err(kind).err(),
        waiting.2.map_err(kind).err(),
    );
    let unavailable = Some(crate::ErrorKind::Unavailable);
    assert_eq!(refused, (unavailable, unavailable, unavailable));
    assert!(queue.limit().await.unwrap().is_none(), "it connects again");
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn waiting() -> Claim {
    Claim::new(1)
        .extended_by_hand()
        .wait(Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_wait_share_a_claim() {
    const CALLERS: usize = 400;
    let (backend, _database, runs) = connect();
    let queue = backend.queue("work").unwrap();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let queue = Arc::clone(&queue);
        callers.spawn(async move {
            let mut claimed = queue.claim(&waiting()).await.unwrap();
            let delivery = claimed.pop().unwrap();
            delivery.ack().await.unwrap();
            claimed.len()
        });
    }
    let asked = || -> usize {
        let sent = runs.sent(CLAIM);
        sent.iter()
            .map(|most| usize::try_from(most[0]).unwrap())
            .sum()
    };
    until("all have asked", || asked() >= CALLERS).await;
    let before = runs.sent(CLAIM).len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let polls = runs.sent(CLAIM).len() - before;
    assert!((1..=30).contains(&polls), "{polls} polls in three seconds");
    let before = runs.sent(CLAIM).len();
    let jobs = (0..CALLERS).map(|nth| Job::new("work", &nth).unwrap());
    queue.push_all(jobs.collect()).await.unwrap();
    assert_eq!(callers.join_all().await, [0; CALLERS], "one each");
    let claims = runs.sent(CLAIM).len() - before;
    // On a busy machine they wake one after the other.
    assert!(claims <= CALLERS / 3, "{claims} claims for {CALLERS} jobs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn what_was_claimed_for_a_caller_that_has_left_goes_to_the_next() {
    let (backend, database, runs) = connect();
    let other = database.connect().await.unwrap().queue("work").unwrap();
    let queue = backend.queue("work").unwrap();
    let (arrived, arrivals) = channel();
    let mut gates = Vec::new();
    for _ in 0..2 {
        let (open, gate) = channel();
        runs.add(CLAIM, Run::Gate(arrived.clone(), gate));
        gates.push(open);
    }
    let claim = || {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move { queue.claim(&waiting()).await.unwrap() })
    };
    let first = claim();
    arrivals.recv().unwrap();
    // They ask while the first claim is under way.
    let leaves = claim();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stays = claim();
    tokio::time::sleep(Duration::from_millis(100)).await;
    gates[0].send(()).unwrap();
    arrivals.recv().unwrap();
    assert_eq!(runs.sent(CLAIM)[1], [2], "one claim for both");
    other.push(Job::new("work", &1).unwrap()).await.unwrap();
    for caller in [first, leaves] {
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
    }
    gates[1].send(()).unwrap();
    assert_eq!(stays.await.unwrap().len(), 1);
    assert_eq!(runs.sent(CLAIM).len(), 2, "it was not released before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn an_error_of_a_claim_reaches_all_whom_it_was_sent_for() {
    let (backend, _database, runs) = connect();
    let queue = backend.queue("work").unwrap();
    let (arrived, arrivals) = channel();
    let (open, gate) = channel();
    runs.add(CLAIM, Run::Gate(arrived, gate));
    runs.add(CLAIM, Run::Answered(vec![Row(Vec::new())]));
    let claim = || {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move { queue.claim(&waiting()).await })
    };
    let first = claim();
    arrivals.recv().unwrap();
    let others = [claim(), claim()];
    tokio::time::sleep(Duration::from_millis(200)).await;
    open.send(()).unwrap();
    for other in others {
        let error = other.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Corrupt);
    }
    // The next ones are served.
    queue.push(Job::new("work", &1).unwrap()).await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn callers_that_one_answer_has_no_room_for_are_served_in_their_order() {
    const CALLERS: usize = 24;
    let (backend, database, runs) = connect();
    let queue = backend.queue("work").unwrap();
    let other = database.connect().await.unwrap().queue("work").unwrap();
    let (arrived, arrivals) = channel();
    let (open, gate) = channel();
    runs.add(CLAIM, Run::Gate(arrived, gate));
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut callers = JoinSet::new();
    for nth in 0..=CALLERS {
        let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
        callers.spawn(async move {
            let delivery = queue.claim(&waiting()).await.unwrap().remove(0);
            let job: (usize, String) = delivery.decode().unwrap();
            order.lock().unwrap().push((job.0, nth));
            delivery.ack().await.unwrap();
        });
        if nth == 0 {
            arrivals.recv().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nine of them are as many as one answer may have.
    let large = "x".repeat(1_000_000);
    for nth in 0..=CALLERS {
        let job = Job::new("work", &(nth, &large)).unwrap();
        other.push(job).await.unwrap();
    }
    open.send(()).unwrap();
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let mut order = order.lock().unwrap().clone();
    order.sort_unstable();
    let expected: Vec<_> = (0..=CALLERS).map(|nth| (nth, nth)).collect();
    assert_eq!(order, expected);
    let claims = runs.sent(CLAIM).len();
    assert!((4..=8).contains(&claims), "{claims} claims");
}
