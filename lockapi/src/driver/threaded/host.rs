//! Threads that run tasks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::lock;
use crate::blocking::spin;
use crate::driver::BackgroundTask;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, thread_local};

/// How long a call may block before another thread sees to a task that was woken; less than the least
/// time limit of a statement, which is that of the renewal of a short lease. A call that returns later
/// is answered all the same.
pub(super) const PATIENCE: Duration = Duration::from_millis(if cfg!(shuttle) { 0 } else { 200 });

/// Answers who is to be woken once it is noted that the job has returned.
type Job = Box<dyn FnOnce() -> Option<Waker> + Send>;

thread_local! {
    /// Whether this thread runs jobs after it has polled.
    static HOSTS: Cell<bool> = const { Cell::new(false) };
    static JOBS: RefCell<VecDeque<Job>> = const { RefCell::new(VecDeque::new()) };
}

/// What a job leaves for the future that waits for it. When that is gone, the value is dropped
/// with the job.
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// Runs blocking work on the thread of the task, once the poll that asked for it has returned.
pub(super) async fn call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if !HOSTS.with(Cell::get) {
        return work();
    }
    let slot = Arc::new(Mutex::new(Slot {
        value: None,
        waker: None,
    }));
    let answer = Arc::clone(&slot);
    let job = move || {
        let value = work();
        let mut slot = lock(&answer);
        slot.value = Some(value);
        let waker = slot.waker.take();
        drop(slot);
        drop(answer);
        waker
    };
    JOBS.with(|jobs| jobs.borrow_mut().push_back(Box::new(job)));
    poll_fn(|context| {
        let mut slot = lock(&slot);
        if let Some(value) = slot.value.take() {
            return Poll::Ready(value);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}

/// A task with the thread that polls it.
pub(super) struct Host {
    name: &'static str,
    task: Mutex<Option<BackgroundTask>>,
    state: Mutex<State>,
    stuck: Arc<AtomicUsize>,
}

struct State {
    woken: bool,
    /// The number of the thread that polls the task; threads with other numbers are left behind.
    poller: u64,
    /// Since when that thread runs a job.
    blocked: Option<Instant>,
    /// That thread, while it sleeps.
    sleeper: Option<Thread>,
    /// Whether another thread stands by to take the task over.
    relieved: bool,
}

impl Host {
    /// Runs a task; without a thread it is dropped, which fails its callers.
    pub(super) fn run(name: &'static str, task: BackgroundTask, stuck: Arc<AtomicUsize>) {
        let host = Arc::new(Self {
            name,
            task: Mutex::new(Some(task)),
            state: Mutex::new(State {
                woken: true,
                poller: 0,
                blocked: None,
                sleeper: None,
                relieved: false,
            }),
            stuck,
        });
        if host.start(0).is_err() {
            host.end();
        }
    }

    /// Runs work after the poll that is under way on this thread, or here and now on a thread
    /// that has no task.
    pub(super) fn defer(work: impl FnOnce() + Send + 'static) {
        if HOSTS.with(Cell::get) {
            let job = move || {
                work();
                None
            };
            JOBS.with(|jobs| jobs.borrow_mut().push_back(Box::new(job)));
        } else {
            work();
        }
    }

    /// Starts thread `number`, which polls the task from then on.
    fn start(self: &Arc<Self>, number: u64) -> io::Result<()> {
        let poller = Poller {
            host: Arc::clone(self),
            number,
            left_behind: false,
        };
        thread::Builder::new()
            .name(self.name.to_owned())
            .spawn(move || poller.run())
            .map(drop)
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        match &mut *lock(&self.task) {
            Some(task) => Pin::as_mut(task).poll(context),
            None => Poll::Ready(()),
        }
    }

    /// Sees to it that a task that was woken is polled although its thread runs a job.
    fn stand_by(self: &Arc<Self>, state: &mut State) {
        if state.blocked.is_some() && !state.relieved {
            let host = Arc::clone(self);
            let relief = thread::Builder::new().name(self.name.to_owned());
            // Without a further thread the task has to wait for the call.
            state.relieved = relief.spawn(move || host.relieve()).is_ok();
        }
    }

    /// Takes the task over as soon as a call has blocked for too long.
    fn relieve(self: Arc<Self>) {
        let mut state = lock(&self.state);
        while let Some(since) = state.blocked {
            let left = PATIENCE.saturating_sub(since.elapsed());
            if left.is_zero() {
                state.relieved = false;
                state.poller += 1;
                state.blocked = None;
                let number = state.poller;
                self.stuck.fetch_add(1, Ordering::Relaxed);
                drop(state);
                let poller = Poller {
                    host: self,
                    number,
                    left_behind: false,
                };
                return poller.run();
            }
            drop(state);
            thread::sleep(left);
            state = lock(&self.state);
        }
        state.relieved = false;
    }

    fn end(&self) {
        let task = lock(&self.task).take();
        drop(task);
    }
}

/// A thread of a task.
struct Poller {
    host: Arc<Host>,
    number: u64,
    /// Whether another thread took the task over.
    left_behind: bool,
}

impl Poller {
    fn run(mut self) {
        HOSTS.with(|hosts| hosts.set(true));
        let waker = Waker::from(Arc::clone(&self.host));
        let mut context = Context::from_waker(&waker);
        while self.awaits() {
            let ready = self.host.poll(&mut context).is_ready();
            if ready {
                self.host.end();
            }
            while let Some(job) = JOBS.with(|jobs| jobs.borrow_mut().pop_front()) {
                self.blocks(Some(Instant::now()));
                let waker = job();
                self.blocks(None);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            if ready {
                return;
            }
        }
    }

    /// Waits until the task is to be polled; `false` when that is another thread's work.
    fn awaits(&self) -> bool {
        if self.left_behind {
            return false;
        }
        // Who was just told may ask again right away, which saves putting this thread to sleep.
        spin(|| lock(&self.host.state).woken);
        loop {
            let mut state = lock(&self.host.state);
            if std::mem::take(&mut state.woken) {
                return true;
            }
            state.sleeper = Some(thread::current());
            drop(state);
            thread::park();
        }
    }

    /// Notes since when a job runs, and that it has returned.
    fn blocks(&mut self, since: Option<Instant>) {
        let mut state = lock(&self.host.state);
        if state.poller == self.number {
            state.blocked = since;
            if state.woken {
                self.host.stand_by(&mut state);
            }
        } else if !std::mem::replace(&mut self.left_behind, true) {
            self.host.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Poller {
    /// When a driver panics the task is dropped, which fails its callers, and so is what the thread has not run. That may own
    /// connections, whose destructors use what the thread has: so not after that is gone.
    fn drop(&mut self) {
        if thread::panicking() {
            self.blocks(None);
            HOSTS.with(|hosts| hosts.set(false));
            if !self.left_behind {
                self.host.end();
            }
            while let Some(job) = JOBS.with(|jobs| jobs.borrow_mut().pop_front()) {
                // Another panic, while this one goes on, would end the process.
                drop(catch_unwind(AssertUnwindSafe(|| drop(job))));
            }
        }
    }
}

impl Wake for Host {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.woken = true;
        self.stand_by(&mut state);
        let sleeper = state.sleeper.take();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.unpark();
        }
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use crate::sync::explore;

    /// A number that somebody waits for.
    #[derive(Default)]
    struct Progress(Mutex<(u32, Option<Waker>)>);

    impl Progress {
        fn advance(&self) {
            let mut progress = lock(&self.0);
            progress.0 += 1;
            let waker = progress.1.take();
            drop(progress);
            if let Some(waker) = waker {
                waker.wake();
            }
        }

        async fn reach(&self, wanted: u32) {
            poll_fn(|context| {
                let mut progress = lock(&self.0);
                if progress.0 >= wanted {
                    return Poll::Ready(());
                }
                progress.1 = Some(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }

    /// Each call is left to a thread of its own when something comes in while it runs.
    #[test]
    fn a_task_goes_on_whatever_comes_in_while_its_calls_run() {
        explore(|| {
            let (requests, answers) =
                (Arc::new(Progress::default()), Arc::new(Progress::default()));
            let stuck = Arc::new(AtomicUsize::new(0));
            let (asked, answered) = (Arc::clone(&requests), Arc::clone(&answers));
            let task = async move {
                for wanted in 1..=2 {
                    asked.reach(wanted).await;
                    call(thread::yield_now).await;
                    answered.advance();
                }
            };
            Host::run("host", Box::pin(task), Arc::clone(&stuck));
            let caller = thread::spawn(move || {
                requests.advance();
                requests.advance();
            });
            shuttle::future::block_on(answers.reach(2));
            caller.join().unwrap();
            while stuck.load(Ordering::Relaxed) > 0 {
                thread::yield_now();
            }
        });
    }
}
