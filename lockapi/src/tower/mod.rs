//! Layers for tower services, with the feature `tower`.
//!
//! [`RateLimitLayer`] asks a [`RateLimiter`](crate::RateLimiter) before each request. [`HttpRules`] define
//! which permits an HTTP request needs, and the response to a refused one, for any server on the types of
//! `http`: hyper, axum, tonic. Other protocols implement [`Rules`].
//!
//! ```
//! use http::{HeaderName, Request, Response};
//! use lockapi::limit::{Outage, Policy, Quota};
//! use lockapi::tower::{HttpRules, RateLimitLayer, Rule, header, path};
//! # async fn example() -> lockapi::Result<()> {
//! # let backend = lockapi::memory::Database::new().connect().await?;
//! let policy = Policy::new(Quota::per_minute(600)).outage(Outage::Share(4));
//! let limiter = backend.rate_limiter(policy)?;
//! let rules = HttpRules::<String>::new([
//!     Rule::new("key", header(HeaderName::from_static("x-api-key")))
//!         .cost(|head| if head.uri.path() == "/search" { 10 } else { 1 }),
//!     Rule::new("path", path()).quota(|_| Quota::per_second(1_000)),
//! ])?
//! .skip(|head| head.uri.path() == "/health");
//! let layer = RateLimitLayer::new(limiter, rules);
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```

mod address;
mod admission;
mod http_rules;
mod idempotency;
mod rate_limit;

pub use address::{Network, peer};
pub use http_rules::{Head, HttpRules, Rule, extension, header, path};
pub use idempotency::{IdempotencyLayer, Idempotent, Refusal, stored};
pub use rate_limit::{RateLimitLayer, RateLimited, Rules};
