//! Decisions as HTTP header fields.

use std::fmt::Write;

use super::decision::Decision;
use super::quota::Algorithm;

/// The values of the header fields `RateLimit-Policy` and `RateLimit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The value of `RateLimit-Policy`.
    pub policy: String,
    /// The value of `RateLimit`.
    pub limit: String,
}

/// Renders decisions as the header fields of the IETF draft
/// `draft-ietf-httpapi-ratelimit-headers-09`: `q` permits in `w` seconds, `r` permits remaining,
/// and `t` seconds until more are available: until the same request is admitted after a refusal,
/// otherwise until all permits are available. Seconds are rounded up. Each decision comes with the
/// name of its policy, in which characters that the fields cannot hold become `_`.
///
/// ```
/// use lockapi::{limit::{Quota, fields}};
///
/// # async fn example() -> lockapi::Result<()> {
/// let backend = lockapi::memory::Database::new().connect().await?;
/// let limiter = backend.rate_limiter(Quota::per_minute(100))?;
/// let decision = limiter.check("user:123:api").await?;
/// let fields = fields([("api", &decision)]);
/// assert_eq!(fields.policy, r#""api";q=100;w=60"#);
/// assert_eq!(fields.limit, r#""api";r=99;t=1"#);
/// # Ok(())
/// # }
/// # lockapi::blocking::block_on(example()).unwrap();
/// ```
#[must_use]
pub fn fields<'a>(decisions: impl IntoIterator<Item = (&'a str, &'a Decision)>) -> Fields {
    let (mut policy, mut limit) = (String::new(), String::new());
    for (name, decision) in decisions {
        if !policy.is_empty() {
            policy += ", ";
            limit += ", ";
        }
        let name = quoted(name);
        let quota = decision.quota();
        // The time in which the whole limit comes back.
        let window = match quota.algorithm() {
            Algorithm::Gcra => {
                u128::from(quota.limit()) * u128::from(quota.interval().unsigned_abs())
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow => quota.period().as_nanos(),
        };
        let reset = if decision.is_admitted() {
            decision.reset_after()
        } else {
            decision.retry_after()
        };
        // Writing to a string cannot fail.
        let _ok = write!(policy, "{name};q={};w={}", quota.limit(), seconds(window));
        let (left, reset) = (decision.remaining(), seconds(reset.as_nanos()));
        let _ok = write!(limit, "{name};r={left};t={reset}");
    }
    Fields { policy, limit }
}

/// A string of RFC 9651, which holds printable ASCII.
fn quoted(name: &str) -> String {
    let mut quoted = String::from('"');
    for char in name.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            ' '..='~' => quoted.push(char),
            _ => quoted.push('_'),
        }
    }
    quoted.push('"');
    quoted
}

fn seconds(nanos: u128) -> u128 {
    nanos.div_ceil(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(quoted("a\"b\\c\r\né"), r#""a\"b\\c___""#);
    }
}
