//! The page: the state of a database in a browser, and a service to mount in a program.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # fn mount(backend: Arc<dyn lockapi::Backend>) -> Result<axum::Router, lockapi::Error> {
//! use lockapi_console::web::{Visitor, WebOptions, service};
//!
//! let options = WebOptions::new().host("admin.example.com").hook(|request| {
//!     // Whatever the program knows its users by.
//!     let user = request.headers.get("x-authenticated-user")?.to_str().ok()?;
//!     Some(Visitor::new(user).may_act(user == "ada"))
//! });
//! Ok(axum::Router::new().nest("/lockapi", service(backend, options)))
//! # }
//! ```
//!
//! # Who may see and do what
//! - Without a [token](WebOptions::token) or a [hook](WebOptions::hook) only requests of this machine are
//!   served: the peer has to be a loopback address, told by
//!   [`into_make_service_with_connect_info`](axum::Router::into_make_service_with_connect_info), and the request
//!   must not have come through a proxy.
//! - A `Host` that is a name has to be `localhost` or [one that was allowed](WebOptions::host), so that a page of
//!   others whose name leads here (DNS rebinding) is refused.
//! - Nothing can be changed unless [actions](WebOptions::actions) are allowed. Each takes a reason, which is in the
//!   audit log with the name of who gave it, and a token against forged requests.
//! - Payloads and headers of jobs and statements of sessions are not read unless [payloads](WebOptions::payloads) are.
//!
//! # Cost
//! However many look, the database is read once in a second at most, by statements with bounds; of a queue 5,000
//! jobs of each priority and state are counted. Who looks at a queue's jobs, at a job, or at the audit log asks for
//! that page of it; sixteen do at the same time at most.

mod act;
mod command;
mod edit;
mod errands;
mod graph;
mod guard;
mod history;
mod jobs;
mod live;
mod markup;
mod metrics;
mod preview;
mod screens;
mod sent;
mod serve;
mod sessions;
mod tables;
mod timeline;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use lockapi::{Backend, Error, ErrorKind};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

pub use command::Web;

use crate::watch::Watch;
use errands::Errands;
use guard::Visit;
use sessions::Sessions;

/// The shortest token.
pub const MIN_TOKEN_BYTES: usize = 16;
/// So many may be told of changes at the same time.
const MAX_LIVE: usize = 64;
/// So many may ask the database at the same time.
const MAX_QUERIES: usize = 16;
/// Who waits longer than this for his turn is told to come back.
const TURN: Duration = Duration::from_secs(5);
/// The largest body of a request.
const MAX_BODY: usize = 16 << 10;

/// Who looks, as a [hook](WebOptions::hook) knows him.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    name: String,
    may_act: bool,
}

impl Visitor {
    /// Somebody who may look. The audit log has the name, at most 100 characters of it.
    pub fn new(name: impl Into<String>) -> Self {
        let name: String = name.into();
        Self {
            name: name.chars().take(100).collect(),
            may_act: false,
        }
    }

    /// Whether he may act as well, where [actions](WebOptions::actions) are allowed or not.
    #[must_use]
    pub fn may_act(mut self, may_act: bool) -> Self {
        self.may_act = may_act;
        self
    }
}

type Hook = dyn Fn(&Parts) -> Option<Visitor> + Send + Sync;

/// Who is let in.
#[derive(Clone)]
enum Gate {
    /// Whoever is on this machine.
    Loopback,
    /// Who has the token with this hash.
    Token([u8; 32]),
    /// Whom the program knows.
    Hook(Arc<Hook>),
}

/// How the page is served.
#[derive(Clone)]
pub struct WebOptions {
    gate: Gate,
    actions: bool,
    payloads: bool,
    hosts: Vec<String>,
}

impl Default for WebOptions {
    fn default() -> Self {
        Self {
            gate: Gate::Loopback,
            actions: false,
            payloads: false,
            hosts: Vec::new(),
        }
    }
}

impl WebOptions {
    /// For those on this machine, to look only, without payloads.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets in who knows the token, from anywhere: in a form, or as `Authorization: Bearer`.
    ///
    /// # Errors
    /// `Invalid` for one of less than [`MIN_TOKEN_BYTES`] bytes.
    pub fn token(mut self, token: &str) -> Result<Self, Error> {
        if token.len() < MIN_TOKEN_BYTES {
            let message = format!(
                "a token of {} bytes; allowed are {MIN_TOKEN_BYTES} or more, at random",
                token.len()
            );
            return Err(Error::new(ErrorKind::Invalid, "web", message));
        }
        self.gate = Gate::Token(Sha256::digest(token).into());
        Ok(self)
    }

    /// Lets in whom the program lets in: `None` is refused. It decides about actions, too.
    #[must_use]
    pub fn hook(
        mut self,
        hook: impl Fn(&Parts) -> Option<Visitor> + Send + Sync + 'static,
    ) -> Self {
        self.gate = Gate::Hook(Arc::new(hook));
        self
    }

    /// Whether those who are let in, but for a [hook](Self::hook), may act: pause, cancel, retry, release.
    #[must_use]
    pub fn actions(mut self, allowed: bool) -> Self {
        self.actions = allowed;
        self
    }

    /// Whether payloads and headers of jobs and statements of sessions are shown.
    #[must_use]
    pub fn payloads(mut self, shown: bool) -> Self {
        self.payloads = shown;
        self
    }

    /// A name under which the page is asked for, besides `localhost` and addresses: without scheme, port and path.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into().to_ascii_lowercase());
        self
    }
}

/// Without what the token hashes to.
impl fmt::Debug for WebOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gate = match &self.gate {
            Gate::Loopback => "loopback",
            Gate::Token(_) => "token",
            Gate::Hook(_) => "hook",
        };
        f.debug_struct("WebOptions")
            .field("gate", &gate)
            .field("actions", &self.actions)
            .field("payloads", &self.payloads)
            .field("hosts", &self.hosts)
            .finish()
    }
}

/// What all requests share.
struct Shared {
    watch: Watch,
    options: WebOptions,
    sessions: Sessions,
    queries: Semaphore,
    errands: Errands,
    live: Arc<Semaphore>,
}

impl Shared {
    /// Waits for the turn to ask the database.
    async fn turn(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Error> {
        let turn = tokio::time::timeout(TURN, self.queries.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            let message =
                format!("{MAX_QUERIES} others ask at the same time; try again in a moment");
            Error::new(ErrorKind::Capacity, "web", message)
        })
    }
}

/// The page of a backend's namespace, to be mounted in a program. It reads on the backend's connections.
///
/// # Panics
/// When the operating system has no random numbers.
pub fn service(backend: Arc<dyn Backend>, options: WebOptions) -> Router {
    let shared = Arc::new(Shared {
        watch: Watch::new(backend, options.payloads),
        options,
        sessions: Sessions::new(),
        queries: Semaphore::new(MAX_QUERIES),
        errands: Errands::default(),
        live: Arc::new(Semaphore::new(MAX_LIVE)),
    });
    let inside = Router::new()
        .route("/", get(screens::home))
        .route("/live", get(live::live))
        .route("/act", get(act::ask).post(act::act))
        .route(
            "/edit",
            get(edit::ask)
                .post(edit::act)
                .layer(DefaultBodyLimit::max(edit::MAX_FORM)),
        )
        .route("/logout", axum::routing::post(sessions::logout))
        .route("/metrics", get(metrics::metrics))
        .route("/{screen}", get(screens::screen))
        .fallback(async |Extension(visit): Extension<Visit>| markup::missing(&visit));
    Router::new()
        .merge(inside.layer(from_fn_with_state(Arc::clone(&shared), guard::admit)))
        .route("/login", get(sessions::form).post(sessions::login))
        .route("/assets/style.css", get(style))
        .route("/assets/live.js", get(script))
        .route("/assets/icon.svg", get(icon))
        .layer(from_fn_with_state(Arc::clone(&shared), guard::protect))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(shared)
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], text).into_response()
}

async fn style(_: State<Arc<Shared>>) -> Response {
    asset("text/css; charset=utf-8", include_str!("assets/style.css"))
}

async fn icon(_: State<Arc<Shared>>) -> Response {
    asset("image/svg+xml", include_str!("assets/icon.svg"))
}

async fn script(_: State<Arc<Shared>>) -> Response {
    asset(
        "text/javascript; charset=utf-8",
        include_str!("assets/live.js"),
    )
}
