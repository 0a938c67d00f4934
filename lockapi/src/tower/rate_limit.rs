//! Rate limits before any tower service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use super::admission::Admission;
use crate::error::Error;
use crate::limit::{PermitRequest, RateLimiter, Verdict};

/// Which permits requests of a protocol need, and the responses to refused ones.
/// [`HttpRules`](super::HttpRules) are those for HTTP.
pub trait Rules<Request, Response>: Send + Sync + 'static {
    /// Which permits a request needs: all of them are taken, or none. One that needs none is not counted.
    fn permit_requests(&self, request: &Request) -> Vec<PermitRequest>;

    /// Adds the decisions to the response of the service. A request that was admitted from a
    /// [block](RateLimitLayer::blocks) has no decisions.
    fn admitted(&self, _verdict: &Verdict, _response: &mut Response) {}

    /// The answer to a request that is refused.
    fn refused(&self, verdict: &Verdict) -> Response;

    /// The answer where the limiter fails.
    fn failed(&self, error: &Error) -> Response;
}

/// Asks a limiter before each request.
///
/// # Guarantees
/// - What is admitted is what the limiter admits, over all processes.
/// - A key that was refused is refused again without a query, until the time that the database returned, and
///   at most for a second: a flood of refused requests costs the server about one query for each permit that
///   is replenished, and one a second for a key without any. A [refund](crate::RateLimiter::refund) or
///   [reset](crate::RateLimiter::reset) therefore takes effect up to a second later.
/// - A request that is dropped before it is admitted has taken nothing; one that was admitted has, whatever becomes of it.
///
/// The limiter's [policy](crate::limit::Policy) says what happens when the database cannot be reached, and whether
/// anything is refused at all ([shadow mode](crate::limit::Policy::shadow)).
///
/// [`tower`](super) has an example.
pub struct RateLimitLayer<L> {
    admission: Arc<Admission>,
    rules: Arc<L>,
}

impl<L> RateLimitLayer<L> {
    /// Of a limiter and rules.
    #[must_use]
    pub fn new(limiter: Arc<dyn RateLimiter>, rules: L) -> Self {
        Self {
            admission: Arc::new(Admission::new(limiter, 1)),
            rules: Arc::new(rules),
        }
    }

    /// Takes up to this number of permits of a key at a time, so that most requests take no round trip. It
    /// applies to requests that need one permit of one limit. The blocks of a key grow while it is in demand
    /// and shrink again, are never more than a tenth of its quota, and expire as the limit refills, so the
    /// quota is never exceeded; see [`Permits`](crate::Permits). Responses to such requests do not show how
    /// many permits are left.
    #[must_use]
    pub fn blocks(self, permits: u64) -> Self {
        let limiter = Arc::clone(self.admission.limiter());
        Self {
            admission: Arc::new(Admission::new(limiter, permits)),
            ..self
        }
    }
}

impl<L> Clone for RateLimitLayer<L> {
    fn clone(&self) -> Self {
        Self {
            admission: Arc::clone(&self.admission),
            rules: Arc::clone(&self.rules),
        }
    }
}

impl<L> fmt::Debug for RateLimitLayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limiter = self.admission.limiter();
        f.debug_tuple("RateLimitLayer").field(limiter).finish()
    }
}

impl<S, L> Layer<S> for RateLimitLayer<L> {
    type Service = RateLimited<S, L>;

    fn layer(&self, inner: S) -> RateLimited<S, L> {
        RateLimited {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind a [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimited<S, L> {
    inner: S,
    layer: RateLimitLayer<L>,
}

impl<S: Clone, L> Clone for RateLimited<S, L> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<Request, S, L> Service<Request> for RateLimited<S, L>
where
    S: Service<Request, Future: Send> + Clone + Send + 'static,
    L: Rules<Request, S::Response>,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let RateLimitLayer { admission, rules } = self.layer.clone();
        let permit_requests = rules.permit_requests(&request);
        // The service that is ready serves this request.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        if permit_requests.is_empty() {
            return Box::pin(inner.call(request));
        }
        Box::pin(async move {
            let verdict = match admission.decide(&permit_requests).await {
                Ok(verdict) if verdict.is_allowed() => verdict,
                Ok(verdict) => return Ok(rules.refused(&verdict)),
                Err(error) => return Ok(rules.failed(&error)),
            };
            let mut response = inner.call(request).await?;
            rules.admitted(&verdict, &mut response);
            Ok(response)
        })
    }
}
