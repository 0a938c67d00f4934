//! Idempotency keys of requests over HTTP.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use http::header::{CONNECTION, RETRY_AFTER};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use sha2::{Digest, Sha256};
use tower_layer::Layer;
use tower_service::Service;

use super::Head;
use crate::error::ErrorKind;
use crate::idempotency::{Begun, Execution, Idempotency, MAX_ANSWER_BYTES, hex};
use crate::key::MAX_NAME_BYTES;
use crate::wait::unless;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Fields that are of one connection, or of one time.
const OF_ONE_CONNECTION: [&str; 9] = [
    "connection",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The longest key that a client may send, in bytes.
const MAX_KEY_BYTES: usize = 128;
/// The largest body of a request, and of an answer, in bytes: with its header fields an answer is not too long.
const MAX_BODY_BYTES: usize = MAX_ANSWER_BYTES / 2;

/// Why a request was neither executed nor answered with a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It has no key, and needs one: 400.
    MissingKey,
    /// Its key is not 1 to 128 printable ASCII characters without quotes, commas and semicolons, with or without quotes
    /// around it, or it has several: 400.
    InvalidKey,
    /// Its body is larger than half a MiB: 413.
    TooLarge,
    /// Its body could not be read: 400.
    Unreadable,
    /// The same request is being executed: 409.
    InProgress,
    /// Another request had the key: 422.
    Mismatch,
    /// The database could not be reached, or the answer not be stored: 503.
    Unavailable,
}

impl Refusal {
    /// The status of the IETF draft.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::MissingKey | Self::InvalidKey | Self::Unreadable => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::InProgress => StatusCode::CONFLICT,
            Self::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

type Scope = Arc<dyn Fn(&Head<'_>) -> String + Send + Sync>;
type Refuse<B> = Arc<dyn Fn(Refusal) -> Response<B> + Send + Sync>;

/// Executes requests with the field `Idempotency-Key` once, as `draft-ietf-httpapi-idempotency-key-header`
/// defines it: later ones with the same key get the same answer, with the field `Idempotency-Replayed`.
///
/// It applies to POST and PATCH. Requests are the same if their method, path, query and body are. Answers
/// with a status below 500, other than 408, 409, 425 and 429, are kept; after others, and where the body of
/// an answer fails, the request may be sent again. An answer whose body is larger than half a MiB, or whose
/// fields are, becomes a 500 without a body, which is kept. Fields of one connection and trailers are not
/// part of an answer: a service whose answers have trailers, as those of gRPC do, cannot be behind this
/// layer.
///
/// The body type has to be made from bytes, as `axum::body::Body` is; convert a body of hyper to such a type.
///
/// # Guarantees
/// Those of [`Idempotency`]. The handler finds the [`Execution`] among the extensions of the request, as
/// `Arc<Execution>`: if it [completes](Execution::complete_in) it with the [`stored`] answer in the
/// transaction of its effect, and commits before it answers, there is one effect for a key. Otherwise the
/// answer is recorded afterwards, and if the process dies in between, the effect happens again.
///
/// # Cancel safety
/// When dropped, as servers do when a client leaves, the handler is dropped, and the request may be executed again.
pub struct IdempotencyLayer<B> {
    idempotency: Idempotency,
    scope: Scope,
    refuse: Refuse<B>,
    required: bool,
    wait: Duration,
}

impl<B: Default + 'static> IdempotencyLayer<B> {
    /// `scope` returns whose key it is, such as the number of the user: a client gets no answers of other
    /// clients.
    #[must_use]
    pub fn new(
        idempotency: Idempotency,
        scope: impl Fn(&Head<'_>) -> String + Send + Sync + 'static,
    ) -> Self {
        Self {
            idempotency,
            scope: Arc::new(scope),
            refuse: Arc::new(|refusal| {
                let mut response = Response::<B>::default();
                *response.status_mut() = refusal.status();
                response
            }),
            required: false,
            wait: Duration::ZERO,
        }
    }
}

impl<B> IdempotencyLayer<B> {
    /// Refuses requests without a key.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Waits for at most this time while the same request is being executed, instead of refusing at once.
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.wait = time;
        self
    }

    /// The response to a refused request, such as problem details.
    #[must_use]
    pub fn refuse(
        mut self,
        refuse: impl Fn(Refusal) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.refuse = Arc::new(refuse);
        self
    }
}

impl<B> Clone for IdempotencyLayer<B> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            scope: Arc::clone(&self.scope),
            refuse: Arc::clone(&self.refuse),
            ..*self
        }
    }
}

impl<B> fmt::Debug for IdempotencyLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IdempotencyLayer")
            .field(&self.idempotency)
            .finish()
    }
}

impl<S, B> Layer<S> for IdempotencyLayer<B> {
    type Service = Idempotent<S, B>;

    fn layer(&self, inner: S) -> Idempotent<S, B> {
        Idempotent {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind an [`IdempotencyLayer`].
#[derive(Debug)]
pub struct Idempotent<S, B> {
    inner: S,
    layer: IdempotencyLayer<B>,
}

impl<S: Clone, B> Clone for Idempotent<S, B> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<A, B, S> Service<Request<A>> for Idempotent<S, B>
where
    S: Service<Request<A>, Response = Response<B>, Error: Send, Future: Send>
        + Clone
        + Send
        + 'static,
    A: Body<Data: Send> + From<Vec<u8>> + Send + 'static,
    B: Body<Data: Send> + From<Vec<u8>> + Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The service that is ready serves this request.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        if ![Method::POST, Method::PATCH].contains(request.method()) {
            return Box::pin(inner.call(request));
        }
        let layer = self.layer.clone();
        let key = match layer.key(&request) {
            Ok(Some(key)) => key,
            Ok(None) => return Box::pin(inner.call(request)),
            Err(refusal) => {
                let refused = (layer.refuse)(refusal);
                return Box::pin(std::future::ready(Ok(refused)));
            }
        };
        Box::pin(async move {
            match layer.execute(inner, &key, request).await {
                Ok(answered) => answered,
                Err(refusal) => {
                    let mut response = (layer.refuse)(refusal);
                    if refusal == Refusal::InProgress {
                        let second = HeaderValue::from_static("1");
                        response.headers_mut().entry(RETRY_AFTER).or_insert(second);
                    }
                    Ok(response)
                }
            }
        })
    }
}

impl<B: Body + From<Vec<u8>>> IdempotencyLayer<B> {
    /// The key as it is stored; `None` for a request that is executed without one.
    fn key<A>(&self, request: &Request<A>) -> Result<Option<String>, Refusal> {
        let mut sent = request.headers().get_all(KEY).into_iter();
        let sent = match (sent.next(), sent.next()) {
            (Some(sent), None) => sent.to_str().map_err(|_| Refusal::InvalidKey)?.trim(),
            (Some(_), Some(_)) => return Err(Refusal::InvalidKey),
            (None, _) if self.required => return Err(Refusal::MissingKey),
            (None, _) => return Ok(None),
        };
        // The draft has a string with quotes, and many clients send it without.
        let bare = sent.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
        let sent = bare.unwrap_or(sent);
        let bad = |byte: u8| {
            !byte.is_ascii_graphic() && byte != b' ' || matches!(byte, b'"' | b',' | b';')
        };
        if sent.is_empty() || sent.len() > MAX_KEY_BYTES || sent.bytes().any(bad) {
            return Err(Refusal::InvalidKey);
        }
        let scope = (self.scope)(&Head::of(request));
        // With its length, so that no scope ends in what a key begins with.
        let key = format!("{}:{scope}:{sent}", scope.len());
        if key.len() > MAX_NAME_BYTES || key.contains('\0') {
            return Ok(Some(format!("sha256:{}", hex(&Sha256::digest(key)))));
        }
        Ok(Some(key))
    }

    async fn execute<A, S>(
        &self,
        mut inner: S,
        key: &str,
        request: Request<A>,
    ) -> Result<Result<Response<B>, S::Error>, Refusal>
    where
        S: Service<Request<A>, Response = Response<B>>,
        A: Body + From<Vec<u8>>,
    {
        let (mut parts, body) = request.into_parts();
        let body = collected(body).await.map_err(|unread| match unread {
            Unread::TooLarge => Refusal::TooLarge,
            Unread::Failed => Refusal::Unreadable,
        })?;
        // As it is in both: a target has its scheme and authority over HTTP/2 alone.
        let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut fingerprint = format!("{} {target}\n", parts.method).into_bytes();
        fingerprint.extend(&body);
        let execution = match self.begin(key, &fingerprint, self.wait).await? {
            Ok(execution) => Arc::new(execution),
            Err(replayed) => return Ok(Ok(replayed)),
        };
        parts.extensions.insert(Arc::clone(&execution));
        let work = inner.call(Request::from_parts(parts, A::from(body)));
        let response = match unless(execution.lost(), work).await {
            Some(Ok(response)) => response,
            Some(Err(error)) => return Ok(Err(error)),
            // Another may be at it by now.
            None => return Err(Refusal::InProgress),
        };
        if !is_kept(response.status()) {
            return Ok(Ok(response));
        }
        let (head, body) = response.into_parts();
        let response = match collected(body).await {
            Ok(body) => Response::from_parts(head, body),
            // It has happened: the answer can be nothing else, now and later.
            Err(Unread::TooLarge) => without_body(StatusCode::INTERNAL_SERVER_ERROR),
            // As after any other error of the handler, the request may be sent again.
            Err(Unread::Failed) => {
                return Ok(Ok(
                    without_body(StatusCode::INTERNAL_SERVER_ERROR).map(B::from)
                ));
            }
        };
        // One that refuses may have rolled back what it had completed.
        if execution.is_completed() && !response.status().is_client_error() {
            return Ok(Ok(response.map(B::from)));
        }
        let (answer, response) = match stored(&response) {
            answer if answer.len() <= MAX_ANSWER_BYTES => (answer, response),
            _ => {
                let response = without_body(StatusCode::INTERNAL_SERVER_ERROR);
                (stored(&response), response)
            }
        };
        match execution.record(answer.clone()).await {
            Ok(()) => return Ok(Ok(response.map(B::from))),
            // Another has answered, or nobody has been at it since.
            Err(error) if error.kind() == ErrorKind::Lost => drop(execution),
            Err(_) => return Err(Refusal::Unavailable),
        }
        let again = match self.begin(key, &fingerprint, Duration::ZERO).await? {
            Ok(again) => again,
            Err(replayed) => return Ok(Ok(replayed)),
        };
        match again.record(answer).await {
            Ok(()) => Ok(Ok(response.map(B::from))),
            Err(_) => Err(Refusal::Unavailable),
        }
    }

    /// The execution, or the answer that there is.
    async fn begin(
        &self,
        key: &str,
        fingerprint: &[u8],
        wait: Duration,
    ) -> Result<Result<Execution, Response<B>>, Refusal> {
        let begun = if wait.is_zero() {
            self.idempotency.begin(key, fingerprint).await
        } else {
            self.idempotency.begin_timeout(key, fingerprint, wait).await
        };
        match begun.map_err(|_| Refusal::Unavailable)? {
            Begun::Execute(execution) => Ok(Ok(execution)),
            Begun::Replay(answer) => {
                let mut response = restored(&answer).ok_or(Refusal::Unavailable)?;
                let replayed = HeaderValue::from_static("true");
                response.headers_mut().insert(REPLAYED, replayed);
                Ok(Err(response.map(B::from)))
            }
            Begun::InProgress => Err(Refusal::InProgress),
            Begun::Mismatch => Err(Refusal::Mismatch),
        }
    }
}

/// Whether an answer is given again, or the request may be executed again.
fn is_kept(status: StatusCode) -> bool {
    let again = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::CONFLICT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    !status.is_server_error() && !again.contains(&status)
}

fn without_body(status: StatusCode) -> Response<Vec<u8>> {
    let mut response = Response::new(Vec::new());
    *response.status_mut() = status;
    response
}

enum Unread {
    TooLarge,
    Failed,
}

async fn collected(body: impl Body) -> Result<Vec<u8>, Unread> {
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame = frame.map_err(|_| Unread::Failed)?;
        let Ok(mut data) = frame.into_data() else {
            continue;
        };
        if data.remaining() > MAX_BODY_BYTES - bytes.len() {
            return Err(Unread::TooLarge);
        }
        while data.has_remaining() {
            let chunk = data.chunk();
            bytes.extend_from_slice(chunk);
            let read = chunk.len();
            data.advance(read);
        }
    }
    Ok(bytes)
}

/// What comes before the body of a stored answer, on a line of its own: the status, and the header fields, with the bytes
/// of their values as characters.
type StoredHead = (u16, Vec<(String, String)>);

/// An answer as [`IdempotencyLayer`] stores it, for a handler that [completes](Execution::complete_in) its request in a
/// transaction.
pub fn stored(response: &Response<impl AsRef<[u8]>>) -> Vec<u8> {
    let headers = response.headers();
    let named = headers.get_all(CONNECTION).into_iter();
    let named = named.filter_map(|value| value.to_str().ok());
    let of_connection: Vec<&str> = named
        .flat_map(|value| value.split(',').map(str::trim))
        .chain(OF_ONE_CONNECTION)
        .collect();
    let headers = headers.iter().filter(|(name, _)| {
        let mut once = of_connection.iter();
        !once.any(|it| it.eq_ignore_ascii_case(name.as_str()))
    });
    let headers = headers.map(|(name, value)| {
        let value = value.as_bytes().iter().map(|byte| char::from(*byte));
        (name.to_string(), value.collect())
    });
    let head: StoredHead = (response.status().as_u16(), headers.collect());
    // Texts and a number can always be written.
    let mut bytes = serde_json::to_vec(&head).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend_from_slice(response.body().as_ref());
    bytes
}

/// `None` for what is no answer.
fn restored(bytes: &[u8]) -> Option<Response<Vec<u8>>> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (status, fields): StoredHead = serde_json::from_slice(&bytes[..end]).ok()?;
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let value: Option<Vec<u8>> = value.chars().map(|char| u8::try_from(char).ok()).collect();
        let name = HeaderName::try_from(name).ok()?;
        headers.append(name, HeaderValue::from_bytes(&value?).ok()?);
    }
    let mut response = Response::new(bytes[end + 1..].to_vec());
    *response.status_mut() = StatusCode::from_u16(status).ok()?;
    *response.headers_mut() = headers;
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_restored_as_they_were() {
        let mut response = Response::new(b"{\n\0\xff}".to_vec());
        *response.status_mut() = StatusCode::CREATED;
        for value in [&b"one"[..], b"caf\xe9", b"\"quoted\""] {
            let value = HeaderValue::from_bytes(value).unwrap();
            response.headers_mut().append("x-header", value);
        }
        response
            .headers_mut()
            .insert("date", "now".parse().unwrap());
        let again = restored(&stored(&response)).unwrap();
        response.headers_mut().remove("date");
        assert_eq!(again.status(), response.status());
        assert_eq!(again.headers(), response.headers());
        assert_eq!(again.body(), response.body());
        for wrong in [&b""[..], b"\n", b"{}", b"[1,[]]\n"] {
            assert!(restored(wrong).is_none());
        }
    }
}
