//! Who is served: the host that is asked for, who asks, and that no page of others made him ask.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, OriginalUri, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, ORIGIN, REFERRER_POLICY,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use sha2::{Digest, Sha256};

use super::{Gate, Shared, Visitor};

/// The cookie that forms are tied to.
const BROWSER: &str = "lockapi_browser";
/// The cookie of who has signed in.
pub(super) const SESSION: &str = "lockapi_session";

/// Nothing is loaded from elsewhere, nothing runs that is in the page itself, and nobody frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers by which a proxy tells that the request came from elsewhere.
const PROXIED: [&str; 7] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "cf-ray",
    "via",
];
/// What others begin with.
const PROXIED_PREFIX: &str = "x-forwarded-";

/// A request that is served.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    /// What addresses of the page begin with: where it is mounted.
    pub(super) base: String,
    /// What forms have to send along.
    pub(super) form_token: String,
    /// Who asks; nobody before he has signed in.
    pub(super) visitor: Option<Visitor>,
    /// Whether he has signed in with a form.
    pub(super) signed_in: bool,
    /// Whether cookies are for encrypted connections only.
    pub(super) encrypted: bool,
}

impl Visit {
    pub(super) fn may_act(&self) -> bool {
        self.visitor.as_ref().is_some_and(|visitor| visitor.may_act)
    }

    pub(super) fn name(&self) -> &str {
        self.visitor.as_ref().map_or("", |visitor| &visitor.name)
    }

    /// A cookie that scripts cannot read and that pages of others do not send.
    pub(super) fn cookie(&self, name: &str, value: &str, seconds: u32) -> HeaderValue {
        let secure = if self.encrypted { "; Secure" } else { "" };
        let text =
            format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// Of every request: its host, its cookie, and the headers of the answer.
pub(super) async fn protect(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let host = match host_of(&request) {
        Ok(host) if is_allowed(&host, &shared.options.hosts) => host,
        Ok(host) => {
            let named: String = host.chars().take(100).collect();
            let message = format!(
                "The host {named:?} is not one of this page; allowed are addresses, localhost, and names that the page was \
                 started with (--host)."
            );
            return headers(refuse(StatusCode::MISDIRECTED_REQUEST, message));
        }
        Err(message) => return headers(refuse(StatusCode::BAD_REQUEST, message.to_owned())),
    };
    let browser = cookie(request.headers(), BROWSER).filter(|value| is_hex(value));
    let fresh = browser.is_none();
    let browser = browser.unwrap_or_else(super::sessions::random);
    let visit = Visit {
        base: base(&request),
        form_token: shared.sessions.form_token(&browser),
        visitor: None,
        signed_in: false,
        encrypted: request
            .headers()
            .get("x-forwarded-proto")
            .is_some_and(|proto| proto == "https"),
    };
    if request.method() != Method::GET
        && request.method() != Method::HEAD
        && let Err(message) = is_own(request.headers(), &host)
    {
        return headers(refuse(StatusCode::FORBIDDEN, message.to_owned()));
    }
    let set = fresh.then(|| visit.cookie(BROWSER, &browser, 30 * 24 * 3600));
    request.extensions_mut().insert(visit);
    let mut response = headers(next.run(request).await);
    if let Some(cookie) = set {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// Lets in who may look.
pub(super) async fn admit(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let actions = shared.options.actions;
    let known = match &shared.options.gate {
        Gate::Loopback => match is_local(&parts.headers, parts.extensions.get()) {
            Ok(()) => Some((Visitor::new("on this machine").may_act(actions), false)),
            Err(message) => return refuse(StatusCode::FORBIDDEN, message.to_owned()),
        },
        Gate::Token(hash) => {
            let visitor = || Visitor::new("with the token").may_act(actions);
            if bears(&parts.headers, hash) {
                Some((visitor(), false))
            } else {
                let session = cookie(&parts.headers, SESSION);
                let known = session.is_some_and(|session| shared.sessions.knows(&session));
                known.then(|| (visitor(), true))
            }
        }
        Gate::Hook(hook) => hook(&parts).map(|visitor| (visitor, false)),
    };
    let Some((visitor, signed_in)) = known else {
        return stranger(&shared, &parts);
    };
    if let Some(visit) = parts.extensions.get_mut::<Visit>() {
        (visit.visitor, visit.signed_in) = (Some(visitor), signed_in);
    }
    next.run(Request::from_parts(parts, body)).await
}

fn stranger(shared: &Shared, parts: &axum::http::request::Parts) -> Response {
    let wants_page = parts.method == Method::GET
        && !["/live", "/metrics"].contains(&parts.uri.path())
        && !parts.headers.contains_key(AUTHORIZATION);
    match (&shared.options.gate, parts.extensions.get::<Visit>()) {
        (Gate::Token(_), Some(visit)) if wants_page => {
            Redirect::to(&format!("{}/login", visit.base)).into_response()
        }
        (Gate::Token(_), _) => {
            let mut response = refuse(StatusCode::UNAUTHORIZED, "Sign in first.".to_owned());
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert("www-authenticate", bearer);
            response
        }
        _ => refuse(
            StatusCode::FORBIDDEN,
            "You may not look at this.".to_owned(),
        ),
    }
}

pub(super) fn refuse(status: StatusCode, message: String) -> Response {
    (status, message + "\n").into_response()
}

fn headers(mut response: Response<Body>) -> Response {
    let all = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        all.insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(X_FRAME_OPTIONS, "DENY");
    // Without any, browsers would send forms with an origin that is null.
    set(REFERRER_POLICY, "same-origin");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    if !response.headers().contains_key(CACHE_CONTROL) {
        let store = HeaderValue::from_static("no-store");
        response.headers_mut().insert(CACHE_CONTROL, store);
    }
    response
}

/// The host that is asked for, with its port.
fn host_of(request: &Request) -> Result<String, &'static str> {
    let mut named = request.headers().get_all(HOST).iter();
    let first = named.next();
    if named.next().is_some() {
        return Err("The request names several hosts; allowed is one.");
    }
    let host = match (request.uri().authority(), first) {
        (_, Some(host)) => host.to_str().ok().map(str::to_owned),
        (Some(authority), None) => Some(authority.as_str().to_owned()),
        (None, None) => None,
    };
    host.filter(|host| !host.is_empty() && !host.contains('@'))
        .ok_or("The request names no host; allowed is one.")
}

/// The host without its port.
fn name_of(host: &str) -> &str {
    let bracketed = host.strip_prefix('[').and_then(|host| host.split_once(']'));
    let (name, rest) = match bracketed {
        Some((address, rest)) if address.parse::<Ipv6Addr>().is_ok() => (address, rest),
        Some(_) => return "",
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = rest.strip_prefix(':').unwrap_or(rest);
    let is_port = rest.len() != port.len() || rest.is_empty();
    if is_port && port.bytes().all(|byte| byte.is_ascii_digit()) {
        name
    } else {
        ""
    }
}

/// An address cannot be made to lead elsewhere, as a name can.
fn is_allowed(host: &str, allowed: &[String]) -> bool {
    let name = name_of(host).to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    name == "localhost"
        || name.parse::<IpAddr>().is_ok()
        || allowed.iter().any(|allowed| allowed == name)
}

/// A name that browsers may ask for, as it is compared with what they ask for.
///
/// # Errors
/// For what is never in a `Host`, or only with something that is not compared.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if name.parse::<IpAddr>().is_ok() {
        return Ok(name);
    }
    let is_label = |label: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=63).contains(&label.len()) && label.bytes().all(is_letter)
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(name);
    }
    Err(
        "allowed is the name of a host as browsers send it, without scheme, port and path, such as admin.example.com; a \
         name with other letters in its form that begins with xn--"
            .to_owned(),
    )
}

/// Whether the request was made on this machine.
fn is_local(
    headers: &HeaderMap,
    peer: Option<&ConnectInfo<SocketAddr>>,
) -> Result<(), &'static str> {
    let Some(ConnectInfo(peer)) = peer else {
        return Err(
            "The program does not tell who asks: serve it with into_make_service_with_connect_info::<SocketAddr>(), or \
             let a token or a hook decide.",
        );
    };
    if !peer.ip().to_canonical().is_loopback() {
        return Err("Only this machine may look: start the page with a token to let in others.");
    }
    let mut names = headers.keys().map(HeaderName::as_str);
    if names.any(|name| name.starts_with(PROXIED_PREFIX) || PROXIED.contains(&name)) {
        return Err(
            "The request came through a proxy, so that it is not known who asks: start the page with a token.",
        );
    }
    Ok(())
}

/// Whether a request that changes something was made by the page itself.
fn is_own(headers: &HeaderMap, host: &str) -> Result<(), &'static str> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin") {
        return Err("Another page made the request; allowed are forms of this one.");
    }
    let origin = text(ORIGIN.as_str());
    let of = |origin: &str| {
        let rest = origin.split_once("://").map(|(_, rest)| rest.to_owned());
        rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
    };
    if origin.is_some_and(|origin| !of(origin)) {
        return Err("A page of another origin made the request; allowed are forms of this one.");
    }
    Ok(())
}

/// Hashes are compared: how long that takes tells nothing of the token.
fn bears(headers: &HeaderMap, hash: &[u8; 32]) -> bool {
    let value = headers.get(AUTHORIZATION).and_then(|it| it.to_str().ok());
    let token = value.and_then(|value| value.split_once(' '));
    token.is_some_and(|(scheme, token)| {
        scheme.eq_ignore_ascii_case("bearer") && Sha256::digest(token.trim()).as_slice() == hash
    })
}

pub(super) fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.filter_map(|line| line.to_str().ok());
    let mut pairs = pairs.flat_map(|line| line.split(';'));
    pairs.find_map(|pair| {
        let (found, value) = pair.trim().split_once('=')?;
        (found == name).then(|| value.to_owned())
    })
}

fn is_hex(value: &str) -> bool {
    value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Where the page is mounted.
fn base(request: &Request) -> String {
    let Some(OriginalUri(original)) = request.extensions().get::<OriginalUri>() else {
        return String::new();
    };
    let (whole, inner) = (original.path(), request.uri().path());
    let base = whole.strip_suffix(inner).unwrap_or(whole);
    let base = base.trim_end_matches('/');
    // An address that begins with two slashes is one of another host.
    if base.starts_with("//") || base.contains('\\') {
        return String::new();
    }
    base.to_owned()
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_were_allowed() {
        let allowed = ["admin.example.com".to_owned()];
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "[::1]:7070",
            "10.0.0.7",
            "admin.example.com",
            "Admin.Example.com.:443",
        ] {
            assert!(is_allowed(host, &allowed), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "admin.example.com.evil",
            "",
            "[::1].evil.example",
            "[::1]:evil.example",
            "[localhost]",
            "::1:80",
        ] {
            assert!(!is_allowed(host, &allowed), "{host}");
        }
    }

    #[test]
    fn names_of_hosts_are_such_as_can_be_asked_for() {
        for (text, name) in [
            ("admin.example.com", "admin.example.com"),
            ("Admin.Example.com.", "admin.example.com"),
            ("my_host-7", "my_host-7"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("10.0.0.7", "10.0.0.7"),
        ] {
            assert_eq!(host_name(text).unwrap(), name);
            assert!(is_allowed(name, &[name.to_owned()]), "{name}");
        }
        assert_eq!(host_name("fe80::1").unwrap(), "fe80::1");
        let long = "x".repeat(64);
        for text in [
            "",
            ".",
            "a..b",
            "https://admin.example.com",
            "admin.example.com/",
            "admin.example.com:443",
            "admin example.com",
            " admin.example.com",
            "*.example.com",
            "ada@admin.example.com",
            "bücher.example",
            &long,
        ] {
            assert!(host_name(text).unwrap_err().contains("allowed"), "{text}");
        }
    }

    #[test]
    fn requests_of_other_pages_are_refused() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            headers
        };
        let host = "localhost:7070";
        for own in [
            headers(&[]),
            headers(&[
                ("origin", "http://localhost:7070"),
                ("sec-fetch-site", "same-origin"),
            ]),
        ] {
            assert!(is_own(&own, host).is_ok(), "{own:?}");
        }
        for other in [
            headers(&[("origin", "http://localhost:8080")]),
            headers(&[("origin", "null")]),
            headers(&[("origin", "https://evil.example")]),
            headers(&[("sec-fetch-site", "cross-site")]),
            headers(&[("sec-fetch-site", "same-site")]),
        ] {
            assert!(is_own(&other, host).is_err(), "{other:?}");
        }
    }
}
