//! Signing in with the token, and the tokens of forms.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::guard::{SESSION, Visit, cookie, refuse};
use super::sent::{Bounded, Sent};
use super::{Gate, Shared, markup};

/// How long nobody has to sign in again.
const LIFE: Duration = Duration::from_hours(12);
/// So many may be signed in; of more the oldest are forgotten.
const MOST: usize = 256;

/// Who has signed in, and the secret of this process that forms are signed with.
pub(super) struct Sessions {
    secret: [u8; 32],
    /// By the hash of the cookie, until when.
    known: Mutex<HashMap<[u8; 32], Instant>>,
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ok = write!(text, "{byte:02x}");
    }
    text
}

fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    bytes
}

/// 256 bits that nobody guesses, as text.
pub(super) fn random() -> String {
    hex(&random_bytes())
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self {
            secret: random_bytes(),
            known: Mutex::default(),
        }
    }

    /// What a form has to send along that a browser with this cookie was given. Both parts of what is hashed
    /// have one length only.
    pub(super) fn form_token(&self, browser: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(self.secret);
        hash.update(browser);
        hex(&hash.finalize())
    }

    pub(super) fn knows(&self, session: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(session).into();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&hash)
            .is_some_and(|until| *until > Instant::now())
    }

    fn begin(&self) -> String {
        let session = random();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        known.retain(|_, until| *until > now);
        if known.len() >= MOST {
            let oldest = known.iter().min_by_key(|(_, until)| **until);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                known.remove(&oldest);
            }
        }
        known.insert(Sha256::digest(&session).into(), now + LIFE);
        session
    }

    fn end(&self, session: &str) {
        let hash: [u8; 32] = Sha256::digest(session).into();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&hash);
    }
}

#[derive(Deserialize)]
pub(super) struct Login {
    #[serde(default)]
    token: String,
    #[serde(default)]
    form: String,
}

#[derive(Deserialize)]
pub(super) struct Logout {
    #[serde(default)]
    form: String,
}

impl Bounded for Login {
    const BOUND: &str = "16 KiB";
}

impl Bounded for Logout {
    const BOUND: &str = "16 KiB";
}

/// Where the token is asked for.
pub(super) async fn form(Extension(visit): Extension<Visit>) -> Response {
    login_page(&visit, StatusCode::OK, None)
}

fn login_page(visit: &Visit, status: StatusCode, wrong: Option<&str>) -> Response {
    let main = html! {
        h1 { "Sign in" }
        @if let Some(wrong) = wrong { p .alarm role="alert" { (wrong) } }
        form .act method="post" action={ (visit.base) "/login" } {
            input type="hidden" name="form" value=(visit.form_token);
            label for="token" { "Token" }
            input #token type="password" name="token" required autocomplete="current-password" autofocus;
            button type="submit" { "Sign in" }
        }
    };
    (status, markup::page(visit, "Sign in", "", None, &main)).into_response()
}

pub(super) async fn login(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Sent(login): Sent<Login>,
) -> Response {
    let Gate::Token(hash) = &shared.options.gate else {
        return refuse(
            StatusCode::NOT_FOUND,
            "There is no token to sign in with.".to_owned(),
        );
    };
    if !is_form(&visit, &login.form) {
        return login_page(
            &visit,
            StatusCode::FORBIDDEN,
            Some("The form was old; try again."),
        );
    }
    if Sha256::digest(&login.token).as_slice() != hash {
        return login_page(
            &visit,
            StatusCode::UNAUTHORIZED,
            Some("That is not the token."),
        );
    }
    let session = shared.sessions.begin();
    let seconds = u32::try_from(LIFE.as_secs()).unwrap_or(u32::MAX);
    let cookie = visit.cookie(SESSION, &session, seconds);
    let home = Redirect::to(&format!("{}/", visit.base));
    ([(SET_COOKIE, cookie)], home).into_response()
}

pub(super) async fn logout(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    headers: HeaderMap,
    Sent(logout): Sent<Logout>,
) -> Response {
    if !is_form(&visit, &logout.form) {
        return refuse(
            StatusCode::FORBIDDEN,
            "The form was old; go back and try again.".to_owned(),
        );
    }
    if let Some(session) = cookie(&headers, SESSION) {
        shared.sessions.end(&session);
    }
    let gone = visit.cookie(SESSION, "", 0);
    let login = Redirect::to(&format!("{}/login", visit.base));
    ([(SET_COOKIE, gone)], login).into_response()
}

/// Whether a form was made for this browser. Both are hashes, of which nobody learns a part.
pub(super) fn is_form(visit: &Visit, sent: &str) -> bool {
    Sha256::digest(sent) == Sha256::digest(&visit.form_token)
}
