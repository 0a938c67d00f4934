//! The suite that every lockapi backend passes.
//!
//! A case is one promise, such as `mutex::M02_second_holder_waits`. Every case runs on every
//! [`Subject`], through each [`Face`]: generic functions, `Arc<dyn Backend>`, and blocking calls.
//! No case knows which backend it runs on. What a subject cannot lend ([`Need`]) turns the cases
//! that need it into ignored ones, visibly; a server that is not there makes them fail.
//!
//! ```text
//! cargo nextest run -p lockapi-conformance                      # everything
//! cargo nextest run -p lockapi-conformance sqlx::dyn::lease     # a backend, a face, a module
//! cargo test -p lockapi-conformance --test memory -- --list     # what there is
//! ```
//!
//! # Write your own backend
//! A backend for another `PostgreSQL` driver is a [`Connector`](lockapi::driver::Connector), its
//! [`Connection`](lockapi::driver::Connection) and its [`Listener`](lockapi::driver::Listener), handed to
//! [`lockapi::engine::start`]. They connect, run statements, pass on notifications, and tell what a
//! failure looks like.
//! All that is known of locking is in `lockapi`, so a backend of yours uses the same tables, keys
//! and tokens, and its programs exclude those of every other backend.
//!
//! `lockapi-tokio-postgres` is a whole one, and `tests/tokio_postgres.rs` is the suite on it. This is the
//! skeleton:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use lockapi::BackendOptions;
//! use lockapi::driver::{BackgroundTask, Call, Connection, Connector, Listener, Mode, Rows, Script};
//! use lockapi::{Backend, Failure, Result};
//! use tokio::runtime::Handle;
//!
//! # mod my_driver {
//! #     use lockapi::Failure;
//! #     use lockapi::driver::{Mode, Rows, Statement, Value};
//! #     pub struct Session;
//! #     pub async fn open(_: &str, _: Mode) -> Result<Session, Failure> { Ok(Session) }
//! #     impl Session {
//! #         pub async fn query(&mut self, _: &Statement, _: &[Value]) -> Result<Rows, Failure> {
//! #             Ok(Rows::new())
//! #         }
//! #         pub async fn execute(&mut self, _: &str) -> Result<(), Failure> { Ok(()) }
//! #         pub async fn notification(&mut self) -> Result<String, Failure> { Ok(String::new()) }
//! #     }
//! # }
//! struct MyConnector {
//!     url: String,
//!     handle: Handle,
//! }
//!
//! impl Connector for MyConnector {
//!     type Connection = MyConnection;
//!     type Listener = MyConnection;
//!
//!     async fn connect(&self, mode: Mode) -> Result<MyConnection, Failure> {
//!         // An error is Failure::connect.
//!         my_driver::open(&self.url, mode).await.map(MyConnection)
//!     }
//!
//!     async fn listener(&self) -> Result<MyConnection, Failure> {
//!         self.connect(Mode::Direct).await
//!     }
//!
//!     fn spawn(&self, _: &'static str, task: BackgroundTask) {
//!         drop(self.handle.spawn(task));
//!     }
//! }
//!
//! struct MyConnection(my_driver::Session);
//!
//! impl Connection for MyConnection {
//!     async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
//!         // Sends statement.sql with the values, and reads columns of statement.columns.
//!         let (statement, params) = call.query();
//!         self.0.query(statement, &params).await
//!     }
//!
//!     async fn script(&mut self, script: Script) -> Result<(), Failure> {
//!         // Sends the text as it is.
//!         self.0.execute(script.sql()).await
//!     }
//! }
//!
//! impl Listener for MyConnection {
//!     async fn next(&mut self) -> Result<String, Failure> {
//!         // Waits for a notification, and answers its payload.
//!         self.0.notification().await
//!     }
//! }
//!
//! pub async fn connect(url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
//!     let connector = MyConnector {
//!         url: url.to_owned(),
//!         handle: Handle::current(),
//!     };
//!     lockapi::engine::start("mine", connector, options).await
//! }
//! ```
//!
//! ## Rules
//! **Tasks.** `spawn` runs a future to its end, beside others. An async driver spawns it on its
//! runtime, and starts a runtime of its own where there is none: the blocking face connects from a
//! thread without one. Drivers that block implement
//! [`BlockingConnector`](lockapi::driver::BlockingConnector), and are threaded on threads by
//! [`Threaded`](lockapi::driver::Threaded); their transactions run [`Steps`].
//!
//! **Dropping a call.** The engine bounds the time of `connect`, `run` and `script` by dropping
//! them. What a dropped call leaves on the connection does not matter: the connection is dropped
//! next. The engine has the server cancel what was given up, on another connection.
//!
//! **Dropping a connection.** It closes the socket, also when the server never answered, and does
//! not block. A driver that leaves its socket to a task has the task aborted.
//!
//! **Modes.** In [`Mode::Direct`](lockapi::driver::Mode::Direct) the session is yours: prepare each
//! statement once and keep it by its text. In [`Mode::Proxied`](lockapi::driver::Mode::Proxied) the
//! next transaction may run in another session: send text and values together, in an unnamed
//! statement, and set nothing in the session. The engine finds out which of them it is, and opens
//! and closes transactions through `script`.
//!
//! **Listening.** One connection at most listens, on what the engine has it listen to by `script`. Its
//! `next` waits for as long as it takes, and fails when the connection has ended: a driver that
//! connects again by itself is told not to, because what was sent meanwhile is lost, and the engine
//! has to know. It need not be quick to notice: nothing depends on notifications, they only save
//! waiting. Where every connection can listen, `Listener` is the type of all of them. A blocking
//! driver waits in slices: see [`BlockingListener`](lockapi::driver::BlockingListener).
//!
//! **Types.** Only those of [`Type`](lockapi::driver::Type) cross, and NULL. Each parameter is cast
//! in the text, so the declared type is the one to send. Hand the types that a row has to
//! [`check_columns`](lockapi::driver::Statement::check_columns) before its columns are read: another
//! type than declared will not do, even if the driver could convert it.
//!
//! **Errors.** A failure to connect is [`Failure::connect`](lockapi::Failure::connect). What the
//! server reports of a statement is a [`Report`](lockapi::Report) with its severity, handed to
//! [`Failure::reported`](lockapi::Failure::reported): a report that ends the session says nothing of
//! the statement, any other says that it had no effect. A report keeps no DETAIL, HINT or CONTEXT,
//! which may quote data. All else is [`Failure::statement`](lockapi::Failure::statement) without a
//! code: the statement counts as one that may have happened, which is the truth when the answer is
//! missing. Never make a code up; a driver that keeps it to itself says
//! [`Failure::refused`](lockapi::Failure::refused), but only of a session that it knows to live on.
//! What was surely not sent, because the connection had ended before, is a `Failure::connect` as
//! well. Say that the connection is broken whenever you cannot be sure that it is usable. The text of
//! an error is what people read, so it should hold the server's message; neither it nor its sources
//! may hold a password or the URL, which parsers like to quote.
//!
//! **Nothing else.** A connector does not retry, does not keep a pool, and changes no setting. If
//! it needs to know what a statement is for, something is wrong with the driver.
//!
//! ## Transactions of the program
//! Programs lock, check in, push and complete inside transactions of their own. Put the program's
//! connection, borrowed, behind [`Connection`](lockapi::driver::Connection) as well, and implement
//! [`Library`](lockapi::driver::Library) once and [`Transaction`](lockapi::driver::Transaction) for each
//! type that a program may have. Unnamed statements are right there: nobody knows what is between you
//! and the server.
//!
//! # Mount the suite
//! A test target without a harness (`harness = false` in `Cargo.toml`) implements [`Driver`] and
//! calls [`run`]:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! use lockapi_conformance::{Driver, Need, Postgres, Transaction};
//! use lockapi::BackendOptions;
//! use lockapi::{Backend, Result};
//!
//! # mod my_backend {
//! #     pub async fn connect(
//! #         _: &str,
//! #         options: lockapi::BackendOptions,
//! #     ) -> lockapi::Result<std::sync::Arc<dyn lockapi::Backend>> {
//! #         lockapi::memory::Database::new().connect_with(options).await
//! #     }
//! #     pub async fn begin(_: &str) -> Box<dyn lockapi_conformance::Transaction> {
//! #         lockapi_conformance::Steps::begin(drop)
//! #     }
//! # }
//! struct MyDriver;
//!
//! #[async_trait]
//! impl Driver for MyDriver {
//!     fn name(&self) -> &'static str {
//!         "mine"
//!     }
//!
//!     async fn connect(&self, url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
//!         my_backend::connect(url, options).await
//!     }
//!
//!     async fn begin(&self, url: &str) -> Box<dyn Transaction> {
//!         my_backend::begin(url).await // as a program would
//!     }
//!
//!     fn offers(&self, need: Need) -> bool {
//!         need != Need::Pool // or implement `connect_beside_full_pool`
//!     }
//! }
//!
//! fn main() {
//!     lockapi_conformance::run(&[Arc::new(Postgres::new(MyDriver))]);
//! }
//! ```
//!
//! The suite brings its own server ([`cluster`]), roles, databases, standby and proxy. It plays
//! other processes by starting the test program again, so `main` does nothing before [`run`].
//!
//! ## Read the results
//! A test is named after subject, face, module and case:
//! `mine::dyn::mutex::M02_second_holder_waits`. What a case promises is in its name, and what did
//! not come true in its message. Each case has a namespace of its own, and a server of its own
//! where it crashes one, so that a case which fails alone fails for a reason.
//!
//! Cases whose needs are not met are listed as ignored, with the need before the name, as in
//! `[needs a pool] mine::dyn::outage::V09_full_pool_of_the_program_does_not_matter`. Nobody can
//! offer [`Need::Futures`] through the blocking face: there is nothing to drop in a call that
//! blocks. A driver without pools does not offer [`Need::Pool`]; one that takes its connections from
//! a pool does not offer [`Need::OwnConnections`], because the pool keeps them open; one that cannot
//! do without named statements does not offer [`Need::Proxy`], and its users have no lease behind
//! one. The other needs are met by `begin`, by the suite and by SQL, so there is no reason for a driver not to
//! offer them. An ignored case is a promise that you do not make: say so to your users.
//!
//! # Subjects
//! What the suite runs on is a [`Subject`], which makes a [`Fixture`] for each case: a namespace, more
//! backends in it, and ways to look at what is held, to let time pass, and to break things. They
//! look into the database and not through the API under test. [`Postgres`] with a driver is one;
//! [`Memory`] is another, and offers [`Need::Futures`] only:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! fn main() {
//!     lockapi_conformance::run(&[Arc::new(lockapi_conformance::Memory)]);
//! }
//! ```
//!
//! Several subjects may be given to one [`run`].
//!
//! # Features
//! `cases`, a default feature, is the suite. Without it there are [`cluster`], [`flood`] and [`wrapped`] alone,
//! which take a fraction of the time to compile.

#![forbid(unsafe_code)]

pub mod cluster;
#[cfg(feature = "cases")]
pub mod differential;
pub mod flood;
pub mod proxy;
pub mod wrapped;

#[cfg(feature = "cases")]
mod accounts;
#[cfg(feature = "cases")]
mod cases;
#[cfg(feature = "cases")]
mod child;
#[cfg(feature = "cases")]
mod context;
#[cfg(feature = "cases")]
mod face;
#[cfg(feature = "cases")]
mod fixture;
#[cfg(feature = "cases")]
mod harness;
#[cfg(feature = "cases")]
mod memory;
#[cfg(feature = "cases")]
mod patience;
#[cfg(feature = "cases")]
mod postgres;
#[cfg(feature = "cases")]
mod steps;

#[cfg(feature = "cases")]
pub use accounts::{Accounts, CREATE_ACCOUNTS};
#[cfg(feature = "cases")]
pub use face::Face;
#[cfg(feature = "cases")]
pub use fixture::{
    Answer, Fault, Fixture, Jobs, Locks, Need, Place, Point, Problem, SECRET, Subject, Transaction,
};
#[cfg(feature = "cases")]
pub use harness::{run, run_pairs, run_through};
#[cfg(feature = "cases")]
pub use memory::Memory;
#[cfg(feature = "cases")]
pub use postgres::{Driver, Postgres};
#[cfg(feature = "cases")]
pub use steps::{BlockingTransaction, Steps};

/// Compiles and runs what the README and the guides show.
#[cfg(all(doctest, feature = "cases"))]
mod documents {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/backends.md")]
    struct Backends;
    #[doc = include_str!("../../docs/guarantees.md")]
    struct Guarantees;
    #[doc = include_str!("../../docs/operating.md")]
    struct Operating;
    #[doc = include_str!("../../docs/guides/blocking.md")]
    struct Blocking;
    #[doc = include_str!("../../docs/guides/http.md")]
    struct Http;
    #[doc = include_str!("../../docs/guides/ids.md")]
    struct Ids;
    #[doc = include_str!("../../docs/guides/leases.md")]
    struct Leases;
    #[doc = include_str!("../../docs/guides/locks.md")]
    struct Locks;
    #[doc = include_str!("../../docs/guides/optimistic-locking.md")]
    struct OptimisticLocking;
    #[doc = include_str!("../../docs/guides/queues.md")]
    struct Queues;
    #[doc = include_str!("../../docs/guides/rate-limits.md")]
    struct RateLimits;
    #[doc = include_str!("../../docs/guides/schedules.md")]
    struct Schedules;
    #[doc = include_str!("../../docs/guides/testing.md")]
    struct Testing;
}
