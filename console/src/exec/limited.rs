//! Running a command when a rate limit allows it: nothing is held meanwhile.

use std::io::ErrorKind as IoErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use lockapi::limit::{Decision, MAX_TIME, PermitRequest};
use lockapi::{Backend, Error, ErrorKind, Key, RateLimiter};
use tokio::time::{Instant, sleep};

use super::signals::Signals;
use super::{Exec, Within, unless_signalled};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::spoken;

/// Between two statements for a key that is locked.
const PAUSE: Duration = Duration::from_millis(100);

impl Exec {
    /// The command takes the place of this process: there is nothing to give back when it ends.
    pub(super) async fn when_allowed(
        &self,
        backend: &dyn Backend,
        key: &Key,
        signals: &mut Signals,
    ) -> Result<Exit> {
        let Some(quota) = self.under.quota else {
            return Err(Failure::usage("--limit needs --quota, such as 100/1h"));
        };
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::usage("no command"));
        };
        let limiter = backend.rate_limiter(quota)?;
        let request = PermitRequest::new(key);
        let deciding = async {
            match self.within() {
                Within::Skip => limiter.check(key).await,
                Within::Wait => until_ready(&*limiter, &request, MAX_TIME).await,
                Within::Time(time) => until_ready(&*limiter, &request, time).await,
            }
        };
        let decision = match unless_signalled(signals, deciding).await {
            Ok(decision) => decision?,
            Err(signal) => return Ok(Exit::signalled(signal.as_raw())),
        };
        if decision.taken_at().is_none() {
            return self.busy(used_up(key, &decision));
        }
        let error = Command::new(program)
            .args(arguments)
            .env("LOCKAPI_KEY", key.to_string())
            .exec();
        limiter.refund(&decision).await?;
        let exit = match error.kind() {
            IoErrorKind::NotFound => Exit::NotFound,
            _ => Exit::NotExecutable,
        };
        let message = format!("{}: {error}", program.display());
        Err(Failure::new(exit, message))
    }
}

/// Waits until the request is admitted; answers a decision without permits where it is not within this time. An open transaction that
/// has the key locked ends a statement, and not the wait.
async fn until_ready(
    limiter: &dyn RateLimiter,
    request: &PermitRequest,
    time: Duration,
) -> Result<Decision, Error> {
    let began = Instant::now();
    let left = || time.saturating_sub(began.elapsed());
    loop {
        match limiter.until_ready(request, left()).await {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            decision => return decision,
        }
        // It waits for the row where a reservation has expired.
        match limiter.peek(request).await {
            Err(error) if error.kind() == ErrorKind::TimedOut && !left().is_zero() => {}
            Ok(decision) if !left().is_zero() && decision.retry_after() <= left() => {}
            decision => return decision,
        }
        sleep(PAUSE).await;
    }
}

fn used_up(key: &Key, decision: &Decision) -> Failure {
    let message = format!("{key} is used up; the command was not run");
    let next = match decision.retry_after() {
        Duration::ZERO => "An open transaction had it locked.".to_owned(),
        Duration::MAX => "The next permit is not in sight.".to_owned(),
        next => format!("The next permit is there in {}.", spoken(next)),
    };
    Failure::new(Exit::Busy, message).advise(next)
}
