//! Forms, which have to come in time.

use std::time::Duration;

use axum::Form;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::guard::refuse;

/// How long a client may take for the body of a form.
const BODY: Duration = Duration::from_secs(10);

/// A form that is not taken in any size.
pub(super) trait Bounded {
    /// The most that is allowed, for people.
    const BOUND: &str;
}

/// What a form has sent.
pub(super) struct Sent<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Bounded> FromRequest<S> for Sent<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match timeout(BODY, Form::from_request(request, state)).await {
            Ok(Ok(Form(sent))) => Ok(Self(sent)),
            Ok(Err(refused)) => match refused.into_response() {
                large if large.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                    let bound = T::BOUND;
                    let message = format!(
                        "The form is too large; allowed are {bound}. Nothing was done: go back, and it has what you wrote."
                    );
                    Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, message))
                }
                other => Err(other),
            },
            Err(_) => {
                let message = format!("The form did not come within {BODY:?}; nothing was done.");
                let mut late = refuse(StatusCode::REQUEST_TIMEOUT, message);
                // The rest of it is not waited for.
                let close = HeaderValue::from_static("close");
                late.headers_mut().insert(CONNECTION, close);
                Err(late)
            }
        }
    }
}
