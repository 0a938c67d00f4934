//! The lanes of sessions that hold locks: one for all, and a few that wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::link::{Link, Links, Watch};
use super::sessions::{Answer, Most, Next, Request, Sessions, Slice};
use crate::error::Failure;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::mutex::{
    Awaited, Circle, Clear, Enlist, Enlisted, Flush, Relax, ReleaseOne, Step, Stepped,
    TOKENS_AT_RISK, TryOne, Wait, Way,
};
use crate::seam::Connector;
use crate::wait::{unless, yield_now};

/// How long a waiting session is kept without work.
const IDLE: Duration = Duration::from_secs(10);

/// How long the disk may take: much longer than a server that lives is silent otherwise.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection of one session, opened when it is needed.
struct SessionLane<C: Connector> {
    sessions: Arc<Sessions>,
    links: Arc<Links<C>>,
    watch: Arc<Watch>,
    index: usize,
    link: Option<(Link<C::Connection>, i64)>,
    /// A value of the token sequence that is known to be safe on disk.
    safe: i64,
    /// What the server has answered and the callers have not been told.
    answered: Option<(Vec<Request>, Vec<Answer>)>,
}

impl<C: Connector> SessionLane<C> {
    fn new(sessions: Arc<Sessions>, links: Arc<Links<C>>, index: usize) -> Self {
        Self {
            watch: links.watch(),
            sessions,
            links,
            index,
            link: None,
            safe: 0,
            answered: None,
        }
    }

    /// Sees to it that there is a connection, and that it is marked.
    async fn open(&mut self) -> Result<(), Failure> {
        if self.link.is_none() {
            let mut link = self.links.open(&self.watch, Duration::ZERO).await?;
            let mark = fastrand::i64(..);
            let answers = link.perform(&[Enlist { mark }]).await.map_err(unsent)?;
            let [Enlisted { marked: true, safe }] = answers[..] else {
                return Err(unsent(Failure::corrupt("the session could not be marked")));
            };
            link.perform(&[Relax]).await.map_err(unsent)?;
            self.sessions.opened(self.index, mark);
            self.link = Some((link, mark));
            self.safe = safe;
        }
        Ok(())
    }

    /// Sees to it that a crash of the server cannot make it give out this token again.
    async fn make_safe(&mut self, token: i64) -> Result<(), Failure> {
        let value = token >> HAND_OVER_BITS;
        if value > self.safe + TOKENS_AT_RISK {
            // A disk that stalls must not make a session that holds locks look dead.
            let patient = self.links.patient_watch(FLUSH_TIMEOUT);
            self.connection()?
                .perform_within(&patient, &[Flush])
                .await?;
            self.safe = value;
        }
        Ok(())
    }

    fn connection(&mut self) -> Result<&mut Link<C::Connection>, Failure> {
        match &mut self.link {
            Some((link, _)) => Ok(link),
            None => Err(unsent(Failure::corrupt("the session is not open"))),
        }
    }

    async fn send(&mut self, requests: &[Request]) -> Result<Vec<Answer>, Failure> {
        let looks: Vec<Awaited> = requests.iter().filter_map(look).collect();
        let steps: Vec<Step> = requests.iter().filter_map(step).collect();
        let link = self.connection()?;
        let stepped = match steps[..] {
            [] => Vec::new(),
            [one] if one.way == Way::Alone && one.release => {
                link.perform(&[ReleaseOne(one.lock)]).await?
            }
            [one] if one.way == Way::Alone => link.perform(&[TryOne(one.lock)]).await?,
            _ => link.perform(&steps).await?,
        };
        let awaited = if looks.is_empty() {
            Vec::new()
        } else {
            link.perform(&looks).await?
        };
        let taken = stepped.iter().find_map(|answer| match answer {
            // All that one statement takes has one token.
            Stepped::Taken(token) => Some(*token),
            _ => None,
        });
        if let Some(token) = taken {
            self.make_safe(token).await?;
        }
        let (mut stepped, mut awaited) = (stepped.into_iter(), awaited.into_iter());
        let answer = |request: &Request| match request {
            Request::Look { .. } => awaited.next().map(Answer::Awaited),
            Request::Try { .. } | Request::Release { .. } => stepped.next().map(Answer::Step),
        };
        Ok(requests.iter().filter_map(answer).collect())
    }

    /// Waits in the server's queue; on behalf of whoever holds other locks meanwhile, after a look
    /// whether they would wait for themselves.
    async fn wait(&mut self, lock: LockId, slice: Slice) -> Result<Waited, Failure> {
        let Slice { way, time, holding } = slice;
        let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1);
        let mut notes = Vec::new();
        if !holding.is_empty() {
            let circle = Circle { lock, holding };
            notes = circle.forget();
            let closed = self.connection()?.perform(&[circle]).await?;
            let closed: Vec<LockId> = closed.into_iter().flatten().collect();
            if !closed.is_empty() {
                return Ok(Waited::Circle(closed));
            }
        }
        let wait = Wait { lock, way, millis };
        let answers = self.connection()?.perform(&[wait]).await?;
        let Some(taken @ (Stepped::Taken(_) | Stepped::Shared)) = answers.into_iter().next() else {
            return Ok(Waited::InVain);
        };
        if !notes.is_empty() {
            self.connection()?.perform(&notes).await?;
        }
        if let Stepped::Taken(token) = taken {
            self.make_safe(token).await?;
        }
        Ok(Waited::Granted(taken))
    }

    /// Runs requests, and settles them whatever happens.
    async fn run(&mut self, requests: Vec<Request>) -> usize {
        if let Err(failure) = self.open().await {
            self.tell();
            self.sessions.refuse_all(requests, &failure);
            return 0;
        }
        let answered = self.answered.take();
        let sessions = Arc::clone(&self.sessions);
        let index = self.index;
        // The callers of the statement before are told while the server works on this one.
        let telling = async move {
            if let Some((requests, answers)) = answered {
                sessions.settle(index, requests, &answers);
            }
        };
        let (outcome, ()) = futures_util::future::join(self.send(&requests), telling).await;
        match outcome {
            Ok(answers) => {
                self.answered = Some((requests, answers));
                0
            }
            Err(failure) => self.recover(requests, &failure).await,
        }
    }

    /// How many callers of the last statement have not been told.
    fn untold(&self) -> usize {
        self.answered.as_ref().map_or(0, |(asked, _)| asked.len())
    }

    /// Tells the callers of the last statement.
    fn tell(&mut self) {
        if let Some((requests, answers)) = self.answered.take() {
            self.sessions.settle(self.index, requests, &answers);
        }
    }

    /// A statement that fails may have taken or released some of its locks. Afterwards none of
    /// them is held, or the session is gone. Answers how many requests are to be sent alone.
    async fn recover(&mut self, requests: Vec<Request>, failure: &Failure) -> usize {
        let steps = requests.iter().filter_map(step);
        let releases: Vec<Step> = steps
            .map(|step| Step {
                release: true,
                ..step
            })
            .collect();
        let released = match &mut self.link {
            Some((link, _)) if !failure.broken && !failure.sent => {
                link.perform(&releases).await.is_ok()
            }
            _ => false,
        };
        if !released {
            self.link = None;
            self.sessions.session_lost(self.index, requests, failure);
            return 0;
        }
        let (tries, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_try);
        let answer = |request: &Request| match request {
            Request::Look { .. } => Answer::Awaited(true),
            Request::Try { .. } | Request::Release { .. } => Answer::Step(Stepped::Released),
        };
        let answers: Vec<Answer> = others.iter().map(answer).collect();
        self.sessions.settle(self.index, others, &answers);
        if tries.len() > 1 {
            let alone = tries.len();
            self.sessions.put_back(tries);
            return alone;
        }
        self.sessions.refuse_all(tries, failure);
        0
    }

    /// Asks whether the session still lives.
    async fn ping(&mut self) {
        if let Some((link, _)) = &mut self.link
            && let Err(failure) = link.perform::<Step>(&[]).await
        {
            self.link = None;
            self.sessions.session_lost(self.index, Vec::new(), &failure);
        }
    }

    /// Waits for one lock, and then holds it until it is released.
    async fn wait_for(&mut self, lock: LockId) {
        let mut tries = 2;
        while let Some(slice) = self.sessions.slice(lock) {
            if let Err(failure) = self.open().await {
                self.sessions.refuse_lock(lock, &failure);
                return;
            }
            match self.wait(lock, slice).await {
                Ok(Waited::Granted(taken)) => {
                    self.sessions.waited(self.index, lock, taken);
                    return self.hold().await;
                }
                Ok(Waited::InVain) => self.clear().await,
                Ok(Waited::Circle(held)) => {
                    self.clear().await;
                    self.sessions.close_circle(lock, &held);
                }
                Err(failure) => {
                    if failure.broken {
                        self.link = None;
                    } else {
                        self.clear().await;
                    }
                    tries -= 1;
                    if tries == 0 {
                        self.sessions.refuse_lock(lock, &failure);
                        return;
                    }
                }
            }
        }
    }

    /// Makes sure that a wait in vain left nothing locked.
    async fn clear(&mut self) {
        if let Some((link, mark)) = &mut self.link {
            let mark = *mark;
            let cleared = link.perform(&[Clear { mark }]).await;
            if !matches!(cleared.as_deref(), Ok([true])) {
                self.link = None;
            }
        }
    }

    async fn hold(&mut self) {
        loop {
            match self.sessions.take(self.index, Most::All) {
                Next::Run(requests) => {
                    self.run(requests).await;
                    self.tell();
                    return;
                }
                Next::Ping => self.ping().await,
                Next::Rest => self.sessions.woken(self.index).await,
                Next::Close => return,
            }
            if self.link.is_none() {
                return;
            }
        }
    }
}

/// How a wait in the server's queue ended.
enum Waited {
    Granted(Stepped),
    InVain,
    /// It was not begun: who holds these locks would have waited for themselves.
    Circle(Vec<LockId>),
}

fn step(request: &Request) -> Option<Step> {
    match request {
        Request::Try { lock, way, .. } => Some(Step {
            lock: *lock,
            way: *way,
            release: false,
        }),
        Request::Release { lock, way, .. } => Some(Step {
            lock: *lock,
            way: *way,
            release: true,
        }),
        Request::Look { .. } => None,
    }
}

fn look(request: &Request) -> Option<Awaited> {
    match request {
        Request::Look { lock } => Some(Awaited(*lock)),
        Request::Try { .. } | Request::Release { .. } => None,
    }
}

fn is_try(request: &Request) -> bool {
    matches!(request, Request::Try { .. })
}

/// Nothing of what the caller asked for was sent yet.
fn unsent(mut failure: Failure) -> Failure {
    failure.sent = false;
    failure
}

/// The lane of session 0, which holds every lock that was free when it was tried.
pub(crate) fn hold_locks<C: Connector>(
    sessions: Arc<Sessions>,
    links: Arc<Links<C>>,
) -> impl Future<Output = ()> + Send {
    let ended = Ended::new(&sessions);
    async move {
        hold(sessions, links).await;
        ended.finished();
    }
}

async fn hold<C: Connector>(sessions: Arc<Sessions>, links: Arc<Links<C>>) {
    let mut lane = SessionLane::new(Arc::clone(&sessions), links, 0);
    let mut alone = 0;
    loop {
        let untold = lane.untold();
        if untold > 0 && sessions.is_idle(0) {
            lane.tell();
            if untold > 1 {
                // Those who were just told get to ask again before the next statement.
                yield_now().await;
            }
        }
        match sessions.take(
            0,
            if alone > 0 {
                Most::One
            } else {
                Most::HalfWith(untold)
            },
        ) {
            Next::Run(requests) => {
                let many = requests.len() > 1;
                alone += lane.run(requests).await;
                alone = alone.saturating_sub(usize::from(!many));
            }
            Next::Ping => lane.ping().await,
            Next::Rest => sessions.woken(0).await,
            Next::Close => break,
        }
    }
}

/// The lane of a session that waits in the server's queue for one lock at a time.
pub(crate) fn wait_for_locks<C: Connector>(
    sessions: Arc<Sessions>,
    links: Arc<Links<C>>,
    index: usize,
) -> impl Future<Output = ()> + Send {
    let ended = Ended::new(&sessions);
    async move {
        wait(sessions, links, index).await;
        ended.finished();
    }
}

async fn wait<C: Connector>(sessions: Arc<Sessions>, links: Arc<Links<C>>, index: usize) {
    let keeper = links.keeper.clone();
    let mut lane = SessionLane::new(Arc::clone(&sessions), links, index);
    loop {
        if let Some(lock) = sessions.take_wanted() {
            lane.wait_for(lock).await;
            sessions.idle();
            continue;
        }
        if sessions.is_closing() {
            break;
        }
        let woken = unless(keeper.sleep(IDLE), sessions.woken(index)).await;
        if woken.is_none() && sessions.retire(index) {
            break;
        }
    }
}

/// Tells everybody when the runtime drops a lane before it has finished, or before it has begun.
struct Ended(Option<Arc<Sessions>>);

impl Ended {
    fn new(sessions: &Arc<Sessions>) -> Self {
        Self(Some(Arc::clone(sessions)))
    }

    fn finished(mut self) {
        self.0 = None;
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(sessions) = self.0.take() {
            let error = super::lane::ended("lock");
            sessions.end(&Failure::connect(None, error));
        }
    }
}
