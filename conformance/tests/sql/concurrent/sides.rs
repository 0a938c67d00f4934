//! What a step of a schedule is run on: a session of a server, or the model.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::panicking;
use std::time::{Duration, Instant, SystemTime};

use lockapi::Failure;
use lockapi::driver::{BlockingConnection, Connection, Inline, Rows, Script, Statement, Value};
use lockapi::suite::driver::Operation;
use lockapi::suite::engine::SessionSettings;
use lockapi::suite::memory::ModelState;
use lockapi_postgres::Borrowed;
use postgres::{Client, NoTls};

/// A minute in microseconds. Times are multiples of it, and are compared in minutes.
pub(super) const UNIT: i64 = 60_000_000;

/// After so long a statement that should have been answered is an error.
const LIMIT: &str = "10s";
/// After so long the server has to show that a session waits, or its answer has to be there.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What is done on a side, and what is seen of it, in words that are the same on both.
pub(super) type Step = Arc<dyn Fn(&mut Side) -> String + Send + Sync>;

/// A step of one batch; `seen` puts an answer into words.
pub(super) fn step<O: Operation>(
    batch: impl Fn(&Side) -> Vec<O> + Send + Sync + 'static,
    seen: impl Fn(&mut Side, O::Output) -> String + Send + Sync + 'static,
) -> Step {
    Arc::new(move |side| {
        let batch = batch(side);
        let answers = side.perform(&batch);
        let words = answers.into_iter().map(|answer| seen(side, answer));
        words.collect::<Vec<_>>().join("; ")
    })
}

/// A step of SQL that changes nothing that the model knows, such as a lock.
pub(super) fn sql(text: &'static str) -> Step {
    Arc::new(move |side| {
        let text = text.replace("$n", &format!("'{}'", side.namespace));
        if let Place::Server(session) = &mut side.place {
            session.batch_execute(&text).expect(&text);
        }
        String::new()
    })
}

/// A step that reads a number, which the model does not know, but the test.
pub(super) fn number(text: &'static str, expected: i64) -> Step {
    Arc::new(move |side| {
        let query = text.replace("$n", &format!("'{}'", side.namespace));
        let found = match &mut side.place {
            Place::Server(session) => session.query_one(&query, &[]).expect(&query).get(0),
            Place::Model(_) => expected,
        };
        format!("{text}: {found}")
    })
}

/// Lets so many minutes go by: on the server everything of the namespace becomes older.
pub(super) fn elapse(minutes: i64) -> Step {
    Arc::new(move |side| {
        let micros = minutes * UNIT;
        match &mut side.place {
            Place::Model(model) => model.now += micros,
            Place::Server(session) => {
                let older = OLDER.replace("$n", &format!("'{}'", side.namespace));
                let older = older.replace("$m", &micros.to_string());
                session.batch_execute(&older).expect("older");
                // Times that the server has told are older too.
                for (name, value) in &mut side.given {
                    if name.starts_with("nanos") {
                        *value -= micros * 1000;
                    } else if name.starts_with("micros") {
                        *value -= micros;
                    }
                }
            }
        }
        String::new()
    })
}

/// Lets so many minutes go by for the owners of worker numbers: floors are times of the clock, which
/// stays.
pub(super) fn elapse_ids(minutes: i64) -> Step {
    Arc::new(move |side| {
        let older = "UPDATE lockapi.id_worker SET renewed_at = renewed_at - $m * interval '1 us',
                            expires_at = expires_at - $m * interval '1 us', floor = floor - $m / 1000
                      WHERE namespace = $n";
        let older = older.replace("$n", &format!("'{}'", side.namespace));
        side.script(&older.replace("$m", &(minutes * UNIT).to_string()));
        if let Place::Model(model) = &mut side.place {
            model.now += minutes * UNIT;
        }
        String::new()
    })
}

const OLDER: &str = "
    UPDATE lockapi.lease
       SET acquired_at = acquired_at - $m * interval '1 us', renewed_at = renewed_at - $m * interval '1 us',
           held_until = held_until - $m * interval '1 us', expires_at = expires_at - $m * interval '1 us',
           released_at = released_at - $m * interval '1 us'
     WHERE namespace = $n;
    UPDATE lockapi.rate_limit
       SET tat = tat - $m::int8 * 1000, at = at - $m::int8 * 1000, started = started - $m::int8 * 1000,
           blocked_until = blocked_until - $m::int8 * 1000, due = due - $m::int8 * 1000,
           withheld_from = withheld_from - $m::int8 * 1000
     WHERE namespace = $n;
    UPDATE lockapi.answer
       SET keep_until = keep_until - $m * interval '1 us'
     WHERE namespace = $n;
    UPDATE lockapi.rate_reservation
       SET at = at - $m::int8 * 1000, expires = expires - $m::int8 * 1000
     WHERE namespace = $n;
    UPDATE lockapi.job
       SET run_at = CASE WHEN due_at IS NULL THEN run_at - $m * interval '1 us' ELSE run_at END,
           due_at = due_at - $m * interval '1 us', lease_until = lease_until - $m * interval '1 us',
           expires_at = expires_at - $m * interval '1 us', started_at = started_at - $m * interval '1 us'
     WHERE namespace = $n;
    UPDATE lockapi.queue SET paused_until = paused_until - $m * interval '1 us' WHERE namespace = $n;
    UPDATE lockapi.paused_name SET paused_until = paused_until - $m * interval '1 us' WHERE namespace = $n;
    UPDATE lockapi.job_history_part SET written_at = written_at - $m * interval '1 us' WHERE namespace = $n;
    UPDATE lockapi.queue_limit SET tat = tat - $m::int8 * 1000, at = at - $m::int8 * 1000 WHERE namespace = $n;
    UPDATE lockapi.group_rate SET tat = tat - $m::int8 * 1000, at = at - $m::int8 * 1000 WHERE namespace = $n;
    UPDATE lockapi.job_archive
       SET completed_at = completed_at - $m * interval '1 us', expires_at = expires_at - $m * interval '1 us'
     WHERE namespace = $n;
    UPDATE lockapi.job_result
       SET completed_at = completed_at - $m * interval '1 us', expires_at = expires_at - $m * interval '1 us'
     WHERE namespace = $n;
    UPDATE lockapi.task
       SET next_at = next_at - $m * interval '1 us', changed_at = changed_at - $m * interval '1 us'
     WHERE namespace = $n;
    UPDATE lockapi.task_run
       SET fire_at = fire_at - $m * interval '1 us', fired_at = fired_at - $m * interval '1 us'
     WHERE namespace = $n;
    UPDATE lockapi.push_key SET created_at = created_at - $m * interval '1 us' WHERE namespace = $n;
    UPDATE lockapi.fence_mark SET checked_at = checked_at - $m * interval '1 us' WHERE namespace = $n;
    UPDATE lockapi.lock_name SET seen_at = seen_at - $m * interval '1 us' WHERE namespace = $n";

/// A duration in minutes: both clocks go on a little.
pub(super) fn minutes(micros: i64) -> i64 {
    (micros + UNIT / 2).div_euclid(UNIT)
}

/// A session of a server, or of the model.
pub(super) struct Side {
    pub(super) place: Place,
    /// The session, for the model.
    pub(super) session: u64,
    pub(super) namespace: String,
    /// What this side has given, such as tokens and numbers of jobs, by the names in the schedule.
    pub(super) given: BTreeMap<String, i64>,
    /// The statements that the last batch took on the server.
    pub(super) ran: Vec<&'static str>,
    /// Sessions that last as long as this one.
    kept: Vec<Client>,
    /// Of a server.
    kind: Option<Kind>,
}

/// The server and the plans of a session.
type Kind = (&'static str, Plans);

/// Sessions that no schedule uses.
fn sessions() -> MutexGuard<'static, BTreeMap<Kind, Vec<Client>>> {
    static SESSIONS: Mutex<BTreeMap<Kind, Vec<Client>>> = Mutex::new(BTreeMap::new());
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Side {
    fn drop(&mut self) {
        let place = std::mem::replace(&mut self.place, Place::Model(Box::default()));
        // After a failure nobody knows what the session does.
        if let (Place::Server(client), Some(kind), false) = (place, self.kind, panicking()) {
            sessions().entry(kind).or_default().push(*client);
        }
    }
}

/// A connection that notes what is run.
struct Noting<'c>(Borrowed<'c, Client>, &'c mut Vec<&'static str>);

impl BlockingConnection for Noting<'_> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        self.1.push(statement.name);
        self.0.run(statement, params)
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.script(script)
    }
}

pub(super) enum Place {
    Server(Box<Client>),
    Model(Box<ModelState>),
}

/// How the statements of a session are planned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Plans {
    /// As the sessions of a backend have it.
    Engine,
    /// Tables are read in the order of their rows, as if no index were of use.
    Scans,
}

impl Side {
    pub(super) fn model() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.expect("a time").as_micros();
        let mut state = ModelState::default();
        state.now = i64::try_from(now).expect("a time");
        Self::new(Place::Model(Box::new(state)))
    }

    /// A session, new or one that another schedule has left.
    pub(super) fn server(url: &'static str, plans: Plans) -> Self {
        let kind = (url, plans);
        if let Some(client) = sessions().entry(kind).or_default().pop() {
            let mut side = Self::new(Place::Server(Box::new(client)));
            side.kind = Some(kind);
            return side;
        }
        let client = Client::connect(url, NoTls).expect("a connection");
        let mut side = Self::new(Place::Server(Box::new(client)));
        side.kind = Some(kind);
        side.perform(&[SessionSettings {
            local: false,
            lock_timeout: LIMIT.to_owned(),
            statement_timeout: LIMIT.to_owned(),
            program: "concurrent".to_owned(),
        }]);
        let more = match plans {
            Plans::Engine => "",
            Plans::Scans => "; SET enable_indexscan = off; SET enable_seqscan = on",
        };
        side.script(&format!(
            "SET idle_in_transaction_session_timeout = '60s'{more}"
        ));
        side
    }

    fn new(place: Place) -> Self {
        Self {
            place,
            session: 0,
            namespace: String::new(),
            given: BTreeMap::new(),
            ran: Vec::new(),
            kept: Vec::new(),
            kind: None,
        }
    }

    /// Runs SQL in a further session, which stays; the model does something else.
    pub(super) fn beside(&mut self, text: &str, on_model: impl FnOnce(&mut Self)) {
        if let Place::Model(_) = self.place {
            on_model(self);
            return;
        }
        let mut client = Client::connect(url(), NoTls).expect("a connection");
        client.batch_execute(text).expect(text);
        self.kept.push(client);
    }

    /// What the side answers.
    ///
    /// # Panics
    /// When it fails: a deadlock, or a limit on the time.
    pub(super) fn perform<O: Operation>(&mut self, batch: &[O]) -> Vec<O::Output> {
        match self.attempt(batch) {
            Ok(answers) => answers,
            Err(failure) => panic!("{}: {failure:?}", O::STATEMENT.name),
        }
    }

    pub(super) fn attempt<O: Operation>(&mut self, batch: &[O]) -> Result<Vec<O::Output>, Failure> {
        match &mut self.place {
            Place::Server(client) => {
                self.ran.clear();
                let noting = Noting(Borrowed(&mut **client), &mut self.ran);
                pollster::block_on(Inline(noting).perform(batch))
            }
            Place::Model(model) => {
                // Between two steps some time passes on a server.
                model.now += 1000;
                let rows = O::model(batch, model, self.session).expect("nobody waits");
                O::decode(batch, rows)
            }
        }
    }

    pub(super) fn script(&mut self, script: &str) {
        if let Place::Server(client) = &mut self.place {
            client.batch_execute(script).expect(script);
        }
    }

    /// What [`CountRunning`](lockapi::suite::queue::CountRunning) calls the transaction of the session.
    pub(super) fn transaction(&mut self) -> i64 {
        let Place::Server(client) = &mut self.place else {
            return 0;
        };
        let sql = "SELECT hashtextextended(virtualtransaction, 0) FROM pg_locks WHERE pid = pg_backend_pid() LIMIT 1";
        client.query_one(sql, &[]).expect("a transaction").get(0)
    }

    /// The process of the server that the session is.
    pub(super) fn pid(&mut self) -> i32 {
        let Place::Server(client) = &mut self.place else {
            return 0;
        };
        let row = client.query_one("SELECT pg_catalog.pg_backend_pid()", &[]);
        row.expect("a process").get(0)
    }

    /// Whether one session waits for another.
    pub(super) fn sees_wait(&mut self, pid: i32, of: i32) -> bool {
        let Place::Server(client) = &mut self.place else {
            return false;
        };
        let row = client.query_one(
            "SELECT $2::int4 = ANY (pg_catalog.pg_blocking_pids($1::int4))",
            &[&pid, &of],
        );
        row.expect("an answer").get(0)
    }

    /// The clock of the side, in microseconds since 1970.
    pub(super) fn now(&mut self) -> i64 {
        match &mut self.place {
            Place::Model(model) => model.now,
            Place::Server(client) => {
                let text =
                    "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8";
                client.query_one(text, &[]).expect("a time").get(0)
            }
        }
    }

    /// Runs a step with what was given so far.
    pub(super) fn run(&mut self, step: &Step, given: &mut BTreeMap<String, i64>) -> String {
        std::mem::swap(&mut self.given, given);
        let seen = step(self);
        std::mem::swap(&mut self.given, given);
        seen
    }

    /// A key that no other schedule has.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{} {key}", self.namespace)
    }

    pub(super) fn given(&self, name: &str) -> i64 {
        self.given.get(name).copied().unwrap_or(0)
    }

    pub(super) fn give(&mut self, name: &str, value: i64) {
        self.given.insert(name.to_owned(), value);
    }

    /// What a number is called that begins with these words.
    pub(super) fn name_of(&self, kind: &str, value: i64) -> String {
        let mut given = self.given.iter();
        let found = given.find(|(name, known)| name.starts_with(kind) && **known == value);
        found.map_or_else(|| format!("unknown {kind}"), |(name, _)| name.clone())
    }

    /// Calls a number by a name, and tells whether it is larger than all of its kind, as tokens are.
    pub(super) fn larger(&mut self, kind: &str, name: &str, value: i64) -> String {
        let known = self.name_of(kind, value);
        if self.given.contains_key(&known) {
            return known;
        }
        let mut of_kind = self
            .given
            .iter()
            .filter(|(known, _)| known.starts_with(kind));
        let larger = of_kind.all(|(_, known)| *known < value);
        self.give(&format!("{kind} {name}"), value);
        if larger {
            "a larger token"
        } else {
            "a smaller token"
        }
        .to_owned()
    }
}

/// The URL of a server that has the tables.
pub(super) fn url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| crate::server().0)
}

/// The URL of a database that this test has for itself, for what goes through whole tables.
pub(super) fn own_url() -> &'static str {
    // Each test has a thread of its own.
    thread_local!(static URL: &'static str = crate::plans::database().0.leak());
    URL.with(|url| *url)
}

/// Looks until there is an answer.
///
/// # Panics
/// When there is none for long.
pub(super) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = look() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::yield_now();
    }
}
