//! Which permits HTTP requests need, and the responses to refused ones.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
};
use sha2::{Digest, Sha256};

use super::Rules;
use crate::error::{Error, ErrorKind, Result};
use crate::idempotency::hex;
use crate::key::MAX_NAME_BYTES;
use crate::limit::{Decision, PermitRequest, Quota, Verdict, fields};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The longest name of a rule, in bytes.
const MAX_RULE_NAME: usize = 64;

/// A request without its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'r> {
    /// The method.
    pub method: &'r Method,
    /// The target.
    pub uri: &'r Uri,
    /// The header fields.
    pub headers: &'r HeaderMap,
    /// Values that other layers have attached to the request, such as the user.
    pub extensions: &'r Extensions,
}

impl<'r> Head<'r> {
    /// That of a request.
    pub fn of<B>(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

type Of<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;

/// One limit for requests: its key, its quota, and the cost of a request.
#[derive(Clone)]
pub struct Rule {
    name: String,
    key: Of<Option<String>>,
    quota: Option<Of<Quota>>,
    cost: Of<u64>,
    optional: bool,
}

impl Rule {
    /// A rule that counts by a key: [`header`], [`path`], [`peer`](super::peer), [`extension`], or a closure,
    /// which may combine several. Each request costs 1, of the quota of the limiter. The name is part of the
    /// key in the database, and of the header fields of answers.
    ///
    /// All requests for which the closure returns `None` share one key, so that a client cannot avoid the
    /// limit by omitting something; see [`optional`](Self::optional).
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        key: impl Fn(&Head<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            key: Arc::new(key),
            quota: None,
            cost: Arc::new(|_| 1),
            optional: false,
        }
    }

    /// The quota of a request, for example by the plan of its user. Requests of one key should have one
    /// quota.
    #[must_use]
    pub fn quota(mut self, of: impl Fn(&Head<'_>) -> Quota + Send + Sync + 'static) -> Self {
        self.quota = Some(Arc::new(of));
        self
    }

    /// How many permits a request takes. One that takes none is not counted.
    #[must_use]
    pub fn cost(mut self, of: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Arc::new(of);
        self
    }

    /// Does not count requests without a key.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    fn check(&self) -> Result<()> {
        let fits = (1..=MAX_RULE_NAME).contains(&self.name.len());
        if fits
            && self
                .name
                .bytes()
                .all(|it| it.is_ascii_graphic() && it != b':')
        {
            return Ok(());
        }
        let message = format!(
            "a rule named {:?}; allowed are 1 to {MAX_RULE_NAME} printable ASCII characters other than space and `:`",
            self.name
        );
        Err(Error::new(ErrorKind::Invalid, "rules", message))
    }

    fn permit_request(&self, head: &Head<'_>) -> Option<PermitRequest> {
        let key = (self.key)(head);
        if key.is_none() && self.optional {
            return None;
        }
        let cost = (self.cost)(head);
        if cost == 0 {
            return None;
        }
        let permit_request = PermitRequest::new(limit_key(&self.name, key.as_deref())).cost(cost);
        Some(match &self.quota {
            Some(quota) => permit_request.quota(quota(head)),
            None => permit_request,
        })
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A key that the database can hold, whatever a client has sent.
fn limit_key(name: &str, key: Option<&str>) -> String {
    let Some(key) = key else {
        return name.to_owned();
    };
    if name.len() + 1 + key.len() > MAX_NAME_BYTES || key.contains('\0') {
        return format!("{name}:sha256:{}", hex(&Sha256::digest(key)));
    }
    format!("{name}:{key}")
}

/// The key of a [`Rule`]: the values of a header field, such as that of an API key. What is stored is their SHA-256,
/// because they may be secrets.
///
/// A client that can choose the value gets a limit for each value. Use it where the value was verified
/// before, or together with the [address](super::peer).
pub fn header(name: HeaderName) -> impl Fn(&Head<'_>) -> Option<String> + Send + Sync + 'static {
    move |head| {
        let mut values = head.headers.get_all(&name).into_iter().peekable();
        values.peek()?;
        let mut hash = Sha256::new();
        for value in values {
            // A value holds no line feed.
            hash.update(value.as_bytes());
            hash.update(b"\n");
        }
        Some(hex(&hash.finalize()))
    }
}

/// The key of a [`Rule`]: the path, as it was sent. Where a path has parameters, the pattern that a router found among
/// the [extensions](extension) is the better one.
pub fn path() -> impl Fn(&Head<'_>) -> Option<String> + Send + Sync + 'static {
    |head| Some(head.uri.path().to_owned())
}

/// The key of a [`Rule`]: what an extension of the request holds, such as the user that authentication has put there.
///
/// ```
/// #[derive(Clone)]
/// struct User { id: i64 }
///
/// let rule = lockapi::tower::Rule::new("user", lockapi::tower::extension(|user: &User| user.id.to_string()));
/// ```
pub fn extension<T: Send + Sync + 'static>(
    key: impl Fn(&T) -> String + Send + Sync + 'static,
) -> impl Fn(&Head<'_>) -> Option<String> + Send + Sync + 'static {
    move |head| head.extensions.get().map(&key)
}

type Refuse<B> = Arc<dyn Fn(&Verdict) -> Response<B> + Send + Sync>;
type Fail<B> = Arc<dyn Fn(&Error) -> Response<B> + Send + Sync>;

/// [`Rules`] for requests over HTTP, which are decided together; `B` is the body of answers.
///
/// A refused request gets the status 429 without a body, unless [`refuse`](Self::refuse) sets another
/// response, and the field `Retry-After`. If the limiter returns an error, which its
/// [policy for outages](crate::limit::Policy::outage) decides, the status is 503; it is 500 if the rules
/// request what is outside the limits of a quota. Responses have the fields `RateLimit-Policy` and
/// `RateLimit` of the IETF draft; see [`fields`].
#[derive(Clone)]
pub struct HttpRules<B> {
    rules: Arc<[Rule]>,
    skip: Option<Of<bool>>,
    refuse: Refuse<B>,
    fail: Fail<B>,
}

impl<B: Default + 'static> HttpRules<B> {
    /// Rules, all of which apply to a request.
    ///
    /// # Errors
    /// `Invalid` for names that are too long, hold other than printable ASCII characters, or are not different.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self> {
        let rules: Arc<[Rule]> = rules.into_iter().collect();
        for (nth, rule) in rules.iter().enumerate() {
            rule.check()?;
            if rules[..nth].iter().any(|other| other.name == rule.name) {
                let message = format!(
                    "two rules named {:?}; allowed are different names",
                    rule.name
                );
                return Err(Error::new(ErrorKind::Invalid, "rules", message));
            }
        }
        Ok(Self {
            rules,
            skip: None,
            refuse: Arc::new(|_| empty(StatusCode::TOO_MANY_REQUESTS)),
            fail: Arc::new(|error| {
                empty(match error.kind() {
                    ErrorKind::Invalid => StatusCode::INTERNAL_SERVER_ERROR,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                })
            }),
        })
    }
}

fn empty<B: Default>(status: StatusCode) -> Response<B> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

impl<B> HttpRules<B> {
    /// Does not count requests such as those of a health check.
    #[must_use]
    pub fn skip(mut self, skip: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.skip = Some(Arc::new(skip));
        self
    }

    /// Status, header fields and body of the response to a refused request. `Retry-After` and the fields of
    /// the draft are added where they are not there. A server of gRPC answers
    /// `Status::resource_exhausted("…").into_http()`.
    #[must_use]
    pub fn refuse(
        mut self,
        refuse: impl Fn(&Verdict) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.refuse = Arc::new(refuse);
        self
    }

    /// The response when the limiter returns an error. The error is for the log: it names the key.
    #[must_use]
    pub fn fail(mut self, fail: impl Fn(&Error) -> Response<B> + Send + Sync + 'static) -> Self {
        self.fail = Arc::new(fail);
        self
    }
}

impl<B> fmt::Debug for HttpRules<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRules")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl<A, B: 'static> Rules<Request<A>, Response<B>> for HttpRules<B> {
    fn permit_requests(&self, request: &Request<A>) -> Vec<PermitRequest> {
        let head = Head::of(request);
        if self.skip.as_ref().is_some_and(|skip| skip(&head)) {
            return Vec::new();
        }
        self.rules
            .iter()
            .filter_map(|rule| rule.permit_request(&head))
            .collect()
    }

    fn admitted(&self, verdict: &Verdict, response: &mut Response<B>) {
        add_headers(verdict, response.headers_mut());
    }

    fn refused(&self, verdict: &Verdict) -> Response<B> {
        let mut response = (self.refuse)(verdict);
        let headers = response.headers_mut();
        if !headers.contains_key(RETRY_AFTER) {
            let wait = verdict
                .binding()
                .map_or(Duration::ZERO, Decision::retry_after);
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, seconds.max(1).into());
        }
        add_headers(verdict, headers);
        response
    }

    fn failed(&self, error: &Error) -> Response<B> {
        (self.fail)(error)
    }
}

/// Adds the fields of the draft.
fn add_headers(verdict: &Verdict, headers: &mut HeaderMap) {
    if verdict.decisions().is_empty() {
        return;
    }
    let keys: Vec<_> = verdict
        .decisions()
        .iter()
        .map(|it| it.key().to_string())
        .collect();
    let named = keys.iter().zip(verdict.decisions());
    // The text of a key has a second `#` in front of one that it begins with.
    let named = named.map(|(key, decision)| {
        let once = key.strip_prefix('#').filter(|rest| rest.starts_with('#'));
        let key = once.unwrap_or(key);
        (key.split(':').next().unwrap_or(key), decision)
    });
    let fields = fields(named);
    for (name, value) in [(POLICY, fields.policy), (LIMIT, fields.limit)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.entry(name).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fit_whatever_is_sent() {
        assert_eq!(limit_key("path", Some("/a")), "path:/a");
        assert_eq!(limit_key("path", None), "path");
        let long = "x".repeat(10_000);
        let key = limit_key("path", Some(&long));
        assert!(crate::Key::from(&*key).check().is_ok());
        assert_ne!(key, limit_key("path", Some(&long[1..])));
        assert!(crate::Key::from(limit_key("p", Some("\0"))).check().is_ok());
    }

    #[test]
    fn names_are_checked() {
        let rule = |name: &str| Rule::new(name, path());
        for names in [
            vec![""],
            vec!["a:b"],
            vec!["a b"],
            vec!["ä"],
            vec!["a", "a"],
        ] {
            let rules = HttpRules::<String>::new(names.iter().copied().map(rule));
            assert_eq!(rules.unwrap_err().kind(), ErrorKind::Invalid, "{names:?}");
        }
        assert!(HttpRules::<String>::new(["#a", "b"].map(rule)).is_ok());
    }

    #[test]
    fn secrets_are_not_in_keys() {
        let key = header(HeaderName::from_static("x-api-key"));
        let sent = |values: &[&str]| {
            let mut request = Request::new(());
            for value in values {
                request
                    .headers_mut()
                    .append("x-api-key", value.parse().unwrap());
            }
            key(&Head::of(&request))
        };
        assert_eq!(sent(&[]), None);
        let one = sent(&["secret"]).unwrap();
        assert!(!one.contains("secret"));
        assert_ne!(Some(&one), sent(&["secret", ""]).as_ref());
        assert_ne!(sent(&["a", "b"]), sent(&["ab"]));
    }
}
