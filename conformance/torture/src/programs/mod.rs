//! Programs: each is a process, which works until it is told to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use lockapi::{Backend, BackendOptions};
use lockapi_conformance::Face;

use crate::Result;
use crate::args::{Control, Library, Program, Role};
use crate::log::{Answer, Log, Op, now};

mod holders;
mod jobs;
pub(crate) mod limited;
mod numbers;
mod plain;
mod recorded;
pub(crate) mod schedules;
mod store;
mod workers;

pub(crate) use jobs::{AGAIN, SNOOZED, is_exact};
pub(crate) use numbers::PERMITS as RATE;
use store::Store;

/// How a program is told where the database is.
pub(crate) const URL: &str = "DATABASE_URL";
/// Names of locks; few, so that programs meet.
pub(crate) const KEYS: [&str; 3] = ["a", "b", "c"];
pub(crate) const PERMITS: u32 = 2;
pub(crate) const QUEUES: [&str; 2] = ["jobs", "tasks"];
/// The longest time to live of what programs hold.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// The largest time limit of a statement that they set for the library, in milliseconds.
pub(crate) const TIMEOUT: u64 = 8000;

/// What programs do at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Work,
    /// Nothing is pushed any more.
    Drain,
    /// Nothing is held any more, so that others can have it.
    Rest,
    /// Others rest.
    Turn,
    End,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Work, Self::Drain, Self::Rest, Self::Turn, Self::End];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Drain => "drain",
            Self::Rest => "rest",
            Self::Turn => "turn",
            Self::End => "end",
        }
    }
}

/// What the tasks of a program have in common.
#[derive(Clone)]
pub(crate) struct Context {
    backend: Arc<dyn Backend>,
    store: Arc<dyn Store>,
    log: Log,
    phase: Arc<AtomicU8>,
    control: Option<Control>,
    /// How many jobs it has pushed more than it has done; those in limited queues apart.
    ahead: Arc<AtomicI64>,
    limited_ahead: Arc<AtomicI64>,
}

/// Is a program until it is told to end.
pub(crate) fn run(program: &Program) -> Result<()> {
    let url = std::env::var(URL).map_err(|_| format!("{URL} is not set"))?;
    let log = Log::open(&program.log, program.number)?;
    // A panic in a task is one of the program.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::exit(101);
    }));
    let phase = obey();
    match program.role {
        Role::Plain => {
            plain::run(&url, &log, &phase, program.control);
            Ok(())
        }
        Role::Library { library, blocking } => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(work(
                (library, blocking),
                &url,
                (log, phase, program.control),
            ))
        }
    }
}

/// Reads what the parent says. The program ends with it.
fn obey() -> Arc<AtomicU8> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Where that fails, the pipe is left.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    let phase = Arc::new(AtomicU8::new(Phase::Work as u8));
    let told = Arc::clone(&phase);
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
            for next in Phase::ALL {
                if line == next.word() {
                    told.store(next as u8, Ordering::Relaxed);
                }
            }
        }
        std::process::exit(1);
    });
    phase
}

async fn work(
    (library, blocking): (Library, bool),
    url: &str,
    (log, phase, control): (Log, Arc<AtomicU8>, Option<Control>),
) -> Result<()> {
    let store = store::open(library, url)?;
    let options = BackendOptions::default()
        .timeout(Duration::from_millis(fastrand::u64(TIMEOUT / 2..TIMEOUT)));
    let backend = loop {
        if phase.load(Ordering::Relaxed) == Phase::End as u8 {
            return Ok(());
        }
        let connecting = connect((library, blocking), url, options.clone());
        let (_, connected) = log.call(Op::Connect, connecting, |_| Answer::Done).await;
        match connected {
            Ok(backend) => break backend,
            Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
        }
    };
    let context = Context {
        backend: Arc::clone(&backend),
        store,
        log,
        phase,
        control,
        ahead: Arc::default(),
        limited_ahead: Arc::default(),
    };
    let mut tasks = tokio::task::JoinSet::new();
    if backend.capabilities().session_locks {
        tasks.spawn(holders::mutex(context.clone()));
        tasks.spawn(holders::mutex(context.clone()));
        tasks.spawn(holders::set(context.clone()));
        tasks.spawn(holders::reader(context.clone()));
        tasks.spawn(holders::counter(context.clone()));
    }
    tasks.spawn(holders::lease(context.clone()));
    tasks.spawn(holders::lease(context.clone()));
    tasks.spawn(holders::term(context.clone()));
    tasks.spawn(holders::leased_mutex(context.clone()));
    tasks.spawn(holders::semaphore(context.clone()));
    tasks.spawn(jobs::push(context.clone()));
    tasks.spawn(jobs::claim(context.clone()));
    tasks.spawn(workers::push(context.clone()));
    tasks.spawn(workers::work(context.clone()));
    tasks.spawn(limited::push(context.clone()));
    tasks.spawn(limited::work::claim(context.clone()));
    tasks.spawn(limited::work::run(context.clone()));
    tasks.spawn(limited::change::change(context.clone()));
    tasks.spawn(schedules::run(context.clone()));
    tasks.spawn(schedules::work(context.clone()));
    tasks.spawn(numbers::limit(context.clone()));
    tasks.spawn(numbers::reserve(context.clone()));
    tasks.spawn(numbers::ids(context.clone()));
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    let closing = backend.close();
    let (_, closed) = context
        .log
        .call(Op::Close, closing, |()| Answer::Done)
        .await;
    drop(closed);
    Ok(())
}

async fn connect(
    (library, blocking): (Library, bool),
    url: &str,
    options: BackendOptions,
) -> lockapi::Result<Arc<dyn Backend>> {
    if !blocking {
        return store::connect(library, url, options).await;
    }
    // As a program that knows of no runtime.
    let (sender, connected) = tokio::sync::oneshot::channel();
    let url = url.to_owned();
    thread::spawn(move || {
        let connected = lockapi::blocking::block_on(store::connect(library, &url, options));
        drop(sender.send(connected));
    });
    let backend = connected.await.expect("connecting does not panic")?;
    Ok(Face::Blocking.wrap(backend))
}

impl Context {
    fn is_over(&self) -> bool {
        self.phase.load(Ordering::Relaxed) >= Phase::End as u8
    }

    /// Waits until it may hold something; `false` when all is over.
    async fn may_hold(&self) -> bool {
        while self.phase.load(Ordering::Relaxed) == Phase::Rest as u8 {
            rest(40).await;
        }
        !self.is_over()
    }

    /// Whether nobody waits for what it holds to be given back.
    fn may_go_on(&self) -> bool {
        self.phase.load(Ordering::Relaxed) < Phase::Rest as u8
    }

    fn pushes(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == Phase::Work as u8
    }

    fn is_control(&self, control: Control) -> bool {
        self.control == Some(control)
    }

    /// Makes a call of the library.
    async fn call<T>(
        &self,
        op: Op,
        call: impl Future<Output = lockapi::Result<T>>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> (u64, lockapi::Result<T>) {
        self.log.call(op, call, answer).await
    }

    /// Runs a transaction of the program; `false` if it is known that nothing of the library's is held any more.
    async fn transact(&self, op: Op, inside: store::Inside, sql: String) -> Transacted {
        let pending = self.log.begin(op);
        let outcome = self.store.transact(inside, sql).await;
        let told = match &outcome {
            Ok(number) => Answer::Number(*number),
            Err(error) => error.answer(),
        };
        pending.end(told);
        match outcome {
            Ok(_) => Transacted::Committed,
            Err(error) if error.is_lost() => Transacted::Lost,
            Err(_) => Transacted::Failed,
        }
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transacted {
    Committed,
    /// Whoever wrote no longer holds.
    Lost,
    Failed,
}

async fn rest(most: u64) {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(..=most * 1000))).await;
}

fn pick(keys: &[&'static str]) -> &'static str {
    keys[fastrand::usize(..keys.len())]
}

/// A time before which something is known.
fn before() -> u64 {
    now()
}
