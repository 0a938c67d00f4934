//! `lockapi exec`: running a command while something is held.
//!
//! # How a command ends with its hold
//! Three processes stand between the terminal and the command:
//!
//! ```text
//! lockapi exec     holds the lock, and tells the watcher until when that is sure
//!   lockapi watch    ends the command in time; adopts what it leaves behind
//!     the command      a process group of its own, which the system kills when the watcher dies
//! ```
//!
//! | What happens | What ends the command |
//! |---|---|
//! | the database cannot be reached | the watcher: SIGTERM, and SIGKILL before the hold expires |
//! | `lockapi exec` is stopped, or starved | the watcher, which has heard of no later deadline |
//! | `lockapi exec` is killed | the watcher, whose connection to it ends |
//! | the watcher is killed | the system; `lockapi exec` ends what else there is |
//! | the watcher is stopped | `lockapi exec`, which kills the watcher |
//! | both are killed | the system ends the command, but not what it has started |
//!
//! Not ended is what runs as another user, as with `sudo`, and what other programs run on the command's behalf, such as
//! containers. Both being stopped at the same time by somebody else is not survived. Protect what is written with
//! `LOCKAPI_FENCE`.

use std::ffi::OsString;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::{Backend, ErrorKind, Key};
use rustix::process::Signal;

mod clock;
mod hold;
mod limited;
mod message;
mod signals;
mod start;
mod supervise;
mod terminal;
mod tree;
mod watch;

pub(crate) use start::Start;
pub(crate) use watch::Watch;

use crate::arguments::Global;
use crate::common::close;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::values::{duration, key, quota};
use hold::Hold;
use signals::Signals;
use supervise::{Outcome, Settings, Supervised};

/// This program, also after its file was replaced.
#[cfg(any(target_os = "linux", target_os = "android"))]
const PROGRAM: &str = "/proc/self/exe";
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const PROGRAM: &str = "lockapi";

const MIN_TTL: Duration = Duration::from_secs(1);

/// Run a command while holding a lock, a lease, a permit or the leadership, or when a limit allows it
///
/// The command never outlives what is held: it gets SIGTERM in time before that expires, and SIGKILL before it does,
/// with all processes it has started, also when `lockapi exec` itself is killed or stopped, or the database is gone.
/// What the command leaves running when it ends is ended as well.
///
/// In its environment are LOCKAPI_KEY, LOCKAPI_FENCE (a number larger than that of every earlier holder; give it to
/// whatever the command writes to) and LOCKAPI_DEADLINE (until when it was held at the start, in seconds since 1970; it
/// is renewed meanwhile).
///
/// The exit status is that of the command, 120 if others hold it, 121 if it was lost, 122 if the database cannot be
/// reached.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    under: Under,

    /// Wait for as long as it takes; the default
    #[arg(long, conflicts_with_all = ["timeout", "skip"])]
    wait: bool,

    /// Wait for at most this time, such as 10s; then exit with 120
    #[arg(long, value_name = "TIME", conflicts_with = "skip", value_parser = duration)]
    timeout: Option<Duration>,

    /// Do not wait: exit with 120 if others hold it
    #[arg(long)]
    skip: bool,

    /// The exit status in place of 120, such as 0 where it is fine that others do the work
    #[arg(long, value_name = "STATUS")]
    busy_status: Option<u8>,

    /// For how long it is held at most without being renewed; it is free so long after this machine has died
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    ttl: Duration,

    /// Keep it from others for at least this time, at most the ttl, also when the command ends earlier
    #[arg(long, value_name = "TIME", value_parser = duration)]
    min_hold: Option<Duration>,

    /// How long the command has between SIGTERM and SIGKILL, at most a third of the ttl; a sixth unless given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    grace: Option<Duration>,

    /// What becomes of the command when what it runs under is lost
    #[arg(long, value_enum, default_value_t = OnLost::Stop)]
    on_lost: OnLost,

    /// Who holds it, for those who look; the name of the machine, the process and the command unless given
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLost {
    /// It is ended
    Stop,
    /// It goes on, and checks its token by itself
    Keep,
}

/// What the command runs under.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Kind {
    /// A lease: free when the machine of its holder has been gone for the ttl
    #[arg(long, value_name = "KEY", value_parser = key)]
    lease: Option<Key>,

    /// A mutex, as programs lock it: free as soon as its holder has gone. When its session ends unnoticed others may have it
    /// for about a second before the command is killed; use a lease where that matters
    #[arg(long, value_name = "KEY", value_parser = key)]
    mutex: Option<Key>,

    /// One of several permits; see --permits
    #[arg(long, value_name = "KEY", value_parser = key, requires = "permits")]
    semaphore: Option<Key>,

    /// The leadership of an election
    #[arg(long, value_name = "KEY", value_parser = key)]
    leader: Option<Key>,

    /// A rate limit; see --quota. Nothing is held while the command runs
    #[arg(long, value_name = "KEY", value_parser = key, requires = "quota")]
    limit: Option<Key>,
}

#[derive(Debug, Args)]
struct Under {
    #[command(flatten)]
    what: Kind,

    /// How many permits the semaphore has
    #[arg(long, value_name = "NUMBER", requires = "semaphore")]
    permits: Option<u32>,

    /// How often the limit allows it, such as 100/1h, or 100/1h,5 for at most 5 at once
    #[arg(long, value_name = "QUOTA", value_parser = quota, requires = "limit")]
    quota: Option<Quota>,
}

/// What is to be held.
#[derive(Debug)]
enum What {
    Lease(Key),
    Mutex(Key),
    Semaphore { key: Key, permits: u32 },
    Leader(Key),
}

impl What {
    fn key(&self) -> &Key {
        match self {
            Self::Lease(key)
            | Self::Mutex(key)
            | Self::Semaphore { key, .. }
            | Self::Leader(key) => key,
        }
    }
}

/// How long is waited.
#[derive(Clone, Copy, Debug)]
enum Within {
    Skip,
    Wait,
    Time(Duration),
}

impl Exec {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        if global.json {
            let message = "--json with exec, whose output is that of its command; allowed with all others but top";
            return Err(Failure::usage(message));
        }
        let settings = self.settings()?;
        let mut signals = Signals::new().map_err(|error| unwatched(&error))?;
        let place = global.place.clone();
        let connecting = unless_signalled(&mut signals, async move { place.connect().await });
        let backend = match connecting.await {
            Ok(backend) => backend?,
            Err(signal) => return Ok(Exit::signalled(signal.as_raw())),
        };
        let outcome = match &self.under.what.limit {
            Some(key) => self.when_allowed(&*backend, key, &mut signals).await,
            None => self.while_held(&*backend, settings, &mut signals).await,
        };
        close(&*backend).await;
        outcome
    }

    /// Those that fit each other.
    fn settings(&self) -> Result<Settings> {
        if self.ttl < MIN_TTL {
            return Err(Failure::usage(format!(
                "a ttl of {:?}; allowed are {MIN_TTL:?} to 366 days, because a command needs time to end in",
                self.ttl
            )));
        }
        let most = self.ttl / 3;
        let grace = self
            .grace
            .unwrap_or((self.ttl / 6).min(Duration::from_secs(10)));
        if grace > most {
            return Err(Failure::usage(format!(
                "a grace of {grace:?}; allowed is at most a third of the ttl, {most:?}, because renewals need the rest"
            )));
        }
        // Where the group is complete, what an argument requires is not asked for.
        for (given, name, of) in [
            (
                self.under.permits.is_some() && self.under.what.semaphore.is_none(),
                "--permits",
                "--semaphore",
            ),
            (
                self.under.quota.is_some() && self.under.what.limit.is_none(),
                "--quota",
                "--limit",
            ),
        ] {
            if given {
                return Err(Failure::usage(format!(
                    "{name} without what it is for; allowed is {of}"
                )));
            }
        }
        if self.min_hold.is_some()
            && (self.under.what.mutex.is_some() || self.under.what.limit.is_some())
        {
            return Err(Failure::usage(
                "--min-hold for something that has no time to live; allowed are --lease, --semaphore and --leader",
            ));
        }
        Ok(Settings {
            ttl: self.ttl,
            margin: (self.ttl / 10).min(Duration::from_secs(2)),
            grace,
            keep: self.on_lost == OnLost::Keep,
        })
    }

    fn within(&self) -> Within {
        match self.timeout {
            _ if self.skip => Within::Skip,
            Some(time) => Within::Time(time),
            None => Within::Wait,
        }
    }

    fn what(&self) -> Result<What> {
        let it = &self.under.what;
        let named = [
            it.lease.clone().map(What::Lease),
            it.mutex.clone().map(What::Mutex),
            it.leader.clone().map(What::Leader),
            it.semaphore
                .clone()
                .zip(self.under.permits)
                .map(|(key, permits)| What::Semaphore { key, permits }),
        ];
        let named = named.into_iter().flatten().next();
        named.ok_or_else(|| Failure::usage("nothing to run under; allowed are --lease, --mutex, --semaphore, --leader and --limit"))
    }

    /// What is answered where others have it. Who says that this is fine hears nothing, so that cron sends no mail.
    fn busy(&self, failure: Failure) -> Result<Exit> {
        match self.busy_status {
            None => Err(failure),
            Some(0) => Ok(Exit::Success),
            Some(status) => Err(failure.exiting(Exit::Other(status))),
        }
    }

    fn options(&self) -> LeaseOptions {
        let options =
            LeaseOptions::new(self.ttl).owner(self.owner.clone().unwrap_or_else(|| self.name()));
        match self.min_hold {
            Some(hold) => options.minimum_hold(hold),
            None => options,
        }
    }

    /// This process, as it is shown to those who look.
    fn name(&self) -> String {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let program = self
            .command
            .first()
            .map(|program| program.to_string_lossy());
        let name = format!(
            "{host} pid {}: {}",
            std::process::id(),
            program.unwrap_or_default()
        );
        let fits = |(at, letter): &(usize, char)| at + letter.len_utf8() <= lockapi::MAX_NAME_BYTES;
        name.char_indices()
            .take_while(fits)
            .map(|(_, letter)| letter)
            .collect()
    }

    async fn while_held(
        &self,
        backend: &dyn Backend,
        settings: Settings,
        signals: &mut Signals,
    ) -> Result<Exit> {
        let what = self.what()?;
        let acquiring = Hold::acquire(backend, &what, self.options(), self.within());
        let hold = match unless_signalled(signals, acquiring).await {
            Ok(hold) => hold?,
            Err(signal) => return Ok(Exit::signalled(signal.as_raw())),
        };
        let Some(hold) = hold else {
            let key = what.key();
            let waited = match self.within() {
                Within::Time(time) => format!(" for {}", humantime::format_duration(time)),
                _ => String::new(),
            };
            let message = format!("{key} is held by others{waited}; the command was not run");
            return self.busy(Failure::new(Exit::Busy, message));
        };
        let deadline = SystemTime::now() + hold.remaining(settings.ttl);
        let deadline = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
        let environment = [
            ("LOCKAPI_KEY", what.key().to_string()),
            ("LOCKAPI_FENCE", hold.token().to_string()),
            ("LOCKAPI_DEADLINE", deadline.as_secs().to_string()),
        ];
        let started = Supervised::start(&hold, settings, &self.command, &environment);
        let started = started.map_err(|error| unwatched(&error))?;
        let outcome = started.outcome(signals).await;
        self.concluded(outcome, hold, what.key()).await
    }

    /// The exit status, once what is held was given back.
    async fn concluded(&self, outcome: Outcome, hold: Hold, key: &Key) -> Result<Exit> {
        let lost = |message: String| Err(Failure::new(Exit::Lost, message));
        let how = match outcome {
            Outcome::Ended(how) => how,
            Outcome::Lost => {
                return lost(format!(
                    "{key} was lost, or could not be renewed in time; the command was ended"
                ));
            }
            Outcome::Unwatched => {
                let message =
                    "the process that watches over the command was killed; the command was ended";
                return Err(Failure::new(Exit::Supervisor, message));
            }
            Outcome::Stuck(pid) => {
                let message = format!(
                    "process {pid} of the command cannot be ended: it runs as another user, or hangs in the system"
                );
                return Err(Failure::new(Exit::Supervisor, message).advise(
                    "It may outlive what it runs under. Run `lockapi exec` as that user.",
                ));
            }
        };
        if hold.is_lost() {
            return lost(format!(
                "{key} was lost before the command had ended, {how}"
            ));
        }
        match hold.release().await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Lost => {
                return lost(format!(
                    "{key} was lost before the command had ended, {how}"
                ));
            }
            // The command has done its work, and it is free after its time to live.
            Err(error) => Failure::from(error).tell(),
        }
        Ok(how.exit())
    }
}

/// What a future answers, unless a signal comes first that ends this process.
async fn unless_signalled<T>(
    signals: &mut Signals,
    future: impl Future<Output = T>,
) -> Result<T, Signal> {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => match signal {
                Signal::CONT => {}
                // Nothing runs yet: as if it were not handled.
                Signal::TSTP => {
                    let _stopped = rustix::process::kill_current_process_group(Signal::STOP);
                }
                signal => return Err(signal),
            },
            answer = &mut future => return Ok(answer),
        }
    }
}

fn unwatched(error: &std::io::Error) -> Failure {
    Failure::new(
        Exit::Supervisor,
        format!("the command cannot be watched over, and was not run: {error}"),
    )
}
