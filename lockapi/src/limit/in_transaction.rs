//! Limits inside a transaction of the caller.

use std::collections::BTreeSet;

use super::charge::{Charge, ChargeLine};
use super::decision::{Decision, Verdict};
use super::manage::Ensure;
use super::policy::{PermitRequest, Policy};
use super::raw_decision::{Outcome, RawDecision};
use super::reservation::Expire;
use super::{MAX_PERMIT_REQUESTS, RateLimiter};
use crate::driver::{Connection, Library, Script, Transaction};
use crate::engine::CallerConnection;
use crate::error::{Error, ErrorKind, Failure, Result};

const OPERATION: &str = "check_all_in";
const SAVEPOINT: &str = include_str!("savepoint.sql");
const RELEASE_SAVEPOINT: &str = include_str!("release_savepoint.sql");
const ROLLBACK_TO_SAVEPOINT: &str = include_str!("rollback_to_savepoint.sql");
/// SQLSTATE of a savepoint without a transaction.
const NO_TRANSACTION: &str = "25P01";
/// How often a request is repeated whose rows others changed meanwhile.
const TRIES: usize = 100;

impl dyn RateLimiter + '_ {
    /// Takes permits of several limits, all or none, in the transaction that is open on `connection`.
    /// The examples of the backend crates show it for each library.
    ///
    /// # Guarantees
    /// The permits are taken if the transaction commits, and not if it rolls back. Until it ends, other
    /// calls for these keys wait, at most for
    /// [`BackendOptions::timeout`](crate::BackendOptions::timeout): take them late, and commit soon.
    /// After a refusal nothing is locked, even if it had to wait for others: the call is rolled back to
    /// a savepoint. Without an open transaction it behaves like [`check_all`](RateLimiter::check_all).
    ///
    /// # Cancel safety
    /// When dropped, permits may be taken unless the transaction is rolled back.
    ///
    /// # Errors
    /// As for [`RateLimiter::check_all`]; the policy for outages and relaxed durability do not apply.
    /// `Unavailable` under REPEATABLE READ and SERIALIZABLE after a conflict with another transaction.
    pub fn check_all_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        requests: &'c [PermitRequest],
    ) -> L::Outcome<'c, Result<Verdict>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(check_all(connection, self, requests)))
    }
}

async fn check_all(
    mut connection: CallerConnection<'_>,
    limiter: &dyn RateLimiter,
    requests: &[PermitRequest],
) -> Result<Verdict> {
    let mut policy = limiter.policy();
    // How the transaction is committed is its owner's business.
    policy.relaxed = false;
    let charge = charge(limiter.namespace(), &policy, requests)?;
    let failed = |failure: Failure| failure.error(OPERATION);
    let marked = match connection.script(Script::Run(SAVEPOINT)).await {
        Ok(()) => true,
        Err(failure) if !may_be_without_transaction(&failure) => return Err(failed(failure)),
        // Nothing is locked when a statement without a transaction has ended.
        Err(_) => false,
    };
    let decided = take(&mut connection, &charge).await;
    let verdict = decided.map(|decided| verdict(requests, &policy, &charge, &decided));
    if !marked {
        return verdict;
    }
    match verdict {
        Ok(verdict) => {
            let end = if verdict.admitted {
                RELEASE_SAVEPOINT
            } else {
                ROLLBACK_TO_SAVEPOINT
            };
            connection.script(Script::Run(end)).await.map_err(failed)?;
            Ok(verdict)
        }
        Err(error) => {
            // The first error says what happened; the transaction can be used again if this works.
            let _undone = connection.script(Script::Run(ROLLBACK_TO_SAVEPOINT)).await;
            Err(error)
        }
    }
}

/// Not every driver tells the code; what else it may be the next statement tells as well.
fn may_be_without_transaction(failure: &Failure) -> bool {
    let code = failure.sqlstate.as_deref();
    !failure.broken && code.is_none_or(|code| code == NO_TRANSACTION)
}

/// Charges, as often as others change the same limits meanwhile.
async fn take<C: Connection>(connection: &mut C, charge: &Charge) -> Result<Vec<RawDecision>> {
    for _ in 0..TRIES {
        let answers = connection.perform(std::slice::from_ref(charge)).await;
        let decided = answers
            .map_err(|failure| failure.error(OPERATION))?
            .concat();
        let (mut absent, mut overdue) = (BTreeSet::new(), BTreeSet::new());
        let mut again = false;
        for (line, decided) in charge.lines.iter().zip(&decided) {
            match decided.outcome {
                Outcome::Absent => _ = absent.insert(&line.key),
                Outcome::Overdue => _ = overdue.insert(&line.key),
                Outcome::Again => {}
                Outcome::Taken(_) | Outcome::Refused | Outcome::Full | Outcome::Unknown => continue,
            }
            again = true;
        }
        if !again {
            return Ok(decided);
        }
        // All keys in one statement: their rows stay locked, and another transaction may want the same ones in another order.
        if !overdue.is_empty() {
            overdue.extend(charge.lines.iter().map(|line| &line.key));
        }
        let absent: Vec<_> = absent
            .into_iter()
            .map(|key| Ensure {
                namespace: charge.namespace.clone(),
                key: key.clone(),
            })
            .collect();
        let overdue: Vec<_> = overdue
            .into_iter()
            .map(|key| Expire {
                namespace: charge.namespace.clone(),
                key: key.clone(),
            })
            .collect();
        if !absent.is_empty() {
            let ensured = connection.perform(&absent).await;
            ensured.map_err(|failure| failure.error(OPERATION))?;
        }
        if !overdue.is_empty() {
            let ended = connection.perform(&overdue).await;
            ended.map_err(|failure| failure.error(OPERATION))?;
        }
    }
    let message =
        "other processes changed the same limits during each attempt; nothing was taken: try again";
    Err(Error::new(ErrorKind::Unavailable, OPERATION, message))
}

/// The charge for requests, which has one line for each key.
pub(crate) fn charge(
    namespace: &str,
    policy: &Policy,
    requests: &[PermitRequest],
) -> Result<Charge> {
    let invalid = |message: String| Error::new(ErrorKind::Invalid, "check_all", message);
    if requests.is_empty() || requests.len() > MAX_PERMIT_REQUESTS {
        let found = requests.len();
        return Err(invalid(format!(
            "{found} limits in a call; allowed are 1 to {MAX_PERMIT_REQUESTS}"
        )));
    }
    let mut lines: Vec<ChargeLine> = Vec::with_capacity(requests.len());
    let mut known = std::collections::HashMap::new();
    for request in requests {
        let quota = request.check(policy.quota)?;
        let at = *known.entry(&request.key).or_insert(lines.len());
        if let Some(line) = lines.get_mut(at) {
            if line.quota != quota {
                return Err(invalid(
                    "one call names the key with two quotas; allowed is one".into(),
                )
                .on(&request.key));
            }
            line.cost += request.cost;
            quota
                .check_cost(line.cost)
                .map_err(|error| error.on(&request.key))?;
        } else {
            lines.push(ChargeLine {
                key: request.key.to_string(),
                quota,
                cost: request.cost,
                id: 0,
                ttl: 0,
            });
        }
    }
    Ok(Charge {
        namespace: namespace.to_owned(),
        lines,
        times: 1,
        relaxed: policy.relaxed,
    })
}

/// The decisions on requests, from the answers to their lines.
pub(crate) fn verdict(
    requests: &[PermitRequest],
    policy: &Policy,
    charge: &Charge,
    decided: &[RawDecision],
) -> Verdict {
    let taken = decided
        .iter()
        .all(|decided| matches!(decided.outcome, Outcome::Taken(_)));
    let decide = |request: &PermitRequest| {
        let key = request.key.to_string();
        let mut lines = charge.lines.iter().zip(decided);
        let (line, decided) = lines.find(|(line, _)| line.key == key)?;
        let mut decision = if taken {
            Decision::decided(&request.key, line.quota, request.cost, decided)
        } else {
            // The other limits tell what they would have said alone.
            Decision::of(
                &request.key,
                line.quota,
                line.cost,
                &decided.level,
                decided.now,
            )
        };
        decision.cost = request.cost;
        decision.shadow = policy.shadow;
        Some(decision)
    };
    Verdict {
        admitted: taken,
        shadow: policy.shadow,
        decisions: requests.iter().filter_map(decide).collect(),
    }
}
