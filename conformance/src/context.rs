//! What a case is given.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockapi::BackendOptions;
use lockapi::lease::LeaseOptions;
use lockapi::suite::lease::Peeked;
use lockapi::{Backend, ErrorKind, Key, Lease, LockId, Mutex, Queue, Result, RwLock};

use crate::child::Child;
use crate::face::Face;
use crate::fixture::{Fixture, Place, Subject};

/// A fixture of the subject under test, and the face that is used.
///
/// It dereferences to its [`Fixture`].
#[derive(Clone)]
pub(crate) struct Context {
    subject: Arc<dyn Subject>,
    face: Face,
    fixture: Arc<dyn Fixture>,
    options: BackendOptions,
}

/// How long a server behind a proxy may take that has one session for all: to find out what such a proxy keeps takes two
/// seconds without neighbours.
const ONE_BY_ONE: Duration = Duration::from_secs(15);

impl Deref for Context {
    type Target = dyn Fixture;

    fn deref(&self) -> &Self::Target {
        &*self.fixture
    }
}

impl Context {
    pub(crate) async fn new(subject: Arc<dyn Subject>, face: Face, place: Place) -> Self {
        let fixture = match subject.fixture(place).await {
            Ok(fixture) => fixture,
            Err(problem) => panic!("no fixture for {place:?}: {problem}"),
        };
        let options = BackendOptions::default();
        let options = match place {
            Place::HostileProxy => options.timeout(ONE_BY_ONE),
            _ => options,
        };
        Self {
            subject,
            face,
            fixture,
            options,
        }
    }

    pub(crate) async fn join(subject: Arc<dyn Subject>, face: Face, ticket: &str) -> Self {
        let fixture = match subject.join(ticket).await {
            Ok(fixture) => fixture,
            Err(problem) => panic!("the fixture cannot be joined: {problem}"),
        };
        Self {
            subject,
            face,
            fixture,
            options: BackendOptions::default(),
        }
    }

    /// Whether futures polled in one task are in line before any of them is sent. A blocking call
    /// is in line once its thread has run, so the scheduler decides how many go together.
    pub(crate) fn calls_arrive_together(&self) -> bool {
        self.face != Face::Blocking
    }

    /// As many calls at the same time, or a tenth: each blocking one has a thread, and thousands of these pass the processors
    /// to each other for minutes where others want them too.
    pub(crate) fn crowd(&self, calls: usize) -> usize {
        if self.face == Face::Blocking {
            calls.div_ceil(10)
        } else {
            calls
        }
    }

    /// The same subject and face at another place.
    pub(crate) async fn at(&self, place: Place) -> Self {
        Self::new(Arc::clone(&self.subject), self.face, place).await
    }

    /// The same database with another namespace.
    pub(crate) async fn elsewhere(&self) -> Self {
        let fixture = match self.fixture.sibling().await {
            Ok(fixture) => fixture,
            Err(problem) => panic!("no other namespace: {problem}"),
        };
        Self {
            fixture,
            ..self.clone()
        }
    }

    /// Connects a backend, as another process would.
    pub(crate) async fn backend(&self) -> Arc<dyn Backend> {
        let mut connected = self.connect(self.options.clone()).await;
        // On a machine that is busy with other cases the first answer may take longer than a statement may. What happens
        // then is what other cases test.
        for _ in 0..2 {
            if !matches!(&connected, Err(error) if error.kind() == ErrorKind::Unavailable) {
                break;
            }
            connected = self.connect(self.options.clone()).await;
        }
        connected.expect("a backend")
    }

    /// Tries to connect a backend with options; their namespace is replaced by the fixture's.
    pub(crate) async fn connect(&self, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        self.face.connect(&self.fixture, options).await
    }

    /// Connects a backend beside a pool of the program that stays exhausted.
    pub(crate) async fn connect_beside_full_pool(
        &self,
    ) -> Option<(Arc<dyn Backend>, Box<dyn Send + Sync>)> {
        let connecting = self
            .fixture
            .backend_beside_full_pool(BackendOptions::default());
        let (backend, pool) = connecting.await.expect("a backend")?;
        Some((self.face.wrap(backend), pool))
    }

    /// Connects a backend for a mutex of this key.
    pub(crate) async fn mutex(&self, key: impl Into<Key>) -> Arc<dyn Mutex> {
        self.backend().await.mutex(key).expect("a mutex")
    }

    /// Connects a backend for a lock of this key that readers share.
    pub(crate) async fn rw_lock(&self, key: impl Into<Key>) -> Arc<dyn RwLock> {
        self.backend().await.rw_lock(key).expect("a lock")
    }

    /// Connects a backend for a lease of this key, with a ttl of a minute.
    pub(crate) async fn lease_of(&self, key: impl Into<Key>) -> Arc<dyn Lease> {
        let options = LeaseOptions::new(MINUTE);
        self.backend().await.lease(key, options).expect("a lease")
    }

    /// Connects a backend for a queue.
    pub(crate) async fn queue(&self) -> Arc<dyn Queue> {
        self.backend().await.queue("work").expect("a queue")
    }

    /// Who holds a lease, which has to be held.
    pub(crate) async fn holder(&self, key: &str) -> Peeked {
        self.lease(key).await.expect("somebody holds the lease")
    }

    /// The advisory lock of a key.
    pub(crate) fn lock_id(&self, key: impl Into<Key>) -> LockId {
        key.into().lock_id(self.namespace())
    }

    /// Starts another process that plays a role; see [`crate::cases::roles`].
    pub(crate) fn child(&self, role: &str, arguments: &[&str]) -> Child {
        let ticket = self.ticket();
        Child::start(self.subject.name(), self.face, &ticket, role, arguments)
    }
}

pub(crate) const MINUTE: Duration = Duration::from_mins(1);
