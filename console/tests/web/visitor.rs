//! A program on the database in memory, and a browser without a screen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONTENT_TYPE, COOKIE, HOST, SET_COOKIE};
use axum::http::response::Parts;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use lockapi::Backend;
use lockapi::memory::Database;
use lockapi_console::web::{WebOptions, service};
use tower::ServiceExt;

pub(crate) const MINUTE: Duration = Duration::from_mins(1);
pub(crate) const HERE: &str = "127.0.0.1:40000";

pub(crate) async fn backend() -> Arc<dyn Backend> {
    Database::new().connect().await.unwrap()
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// The value of a hidden field.
    pub(crate) fn field(&self, name: &str) -> String {
        let at = format!("name=\"{name}\" value=\"");
        let (_, rest) = self
            .body
            .split_once(&at)
            .unwrap_or_else(|| panic!("no field {name}: {}", self.body));
        rest.split('"').next().unwrap().to_owned()
    }
}

/// A browser: it keeps cookies.
pub(crate) struct Browser {
    router: Router,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) cookies: Vec<(String, String)>,
}

impl Browser {
    pub(crate) fn on(router: Router) -> Self {
        Self {
            router,
            peer: Some(HERE.parse().unwrap()),
            cookies: Vec::new(),
        }
    }

    pub(crate) fn of(backend: &Arc<dyn Backend>, options: WebOptions) -> Self {
        Self::on(service(Arc::clone(backend), options))
    }

    pub(crate) async fn send(&mut self, request: Request<Body>) -> Answer {
        let (parts, body) = self.open(request).await;
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// A stream of changes, as it was opened.
    pub(crate) async fn changes(&mut self, address: &str) -> Body {
        let request = Request::get(address).body(Body::empty()).unwrap();
        let (parts, body) = self.open(request).await;
        assert_eq!(parts.status, StatusCode::OK);
        assert_eq!(parts.headers[CONTENT_TYPE], "text/event-stream");
        body
    }

    async fn open(&mut self, mut request: Request<Body>) -> (Parts, Body) {
        if !request.headers().contains_key(HOST) {
            request
                .headers_mut()
                .insert(HOST, "localhost:7070".parse().unwrap());
        }
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        if !self.cookies.is_empty() {
            let pairs: Vec<_> = self
                .cookies
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            request
                .headers_mut()
                .insert(COOKIE, pairs.join("; ").parse().unwrap());
        }
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        for cookie in parts.headers.get_all(SET_COOKIE) {
            let cookie = cookie.to_str().unwrap();
            assert!(
                cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
                "{cookie}"
            );
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.retain(|(known, _)| known != name);
            if !value.is_empty() {
                self.cookies.push((name.to_owned(), value.to_owned()));
            }
        }
        (parts, body)
    }

    pub(crate) async fn get(&mut self, address: &str) -> Answer {
        self.send(Request::get(address).body(Body::empty()).unwrap())
            .await
    }

    pub(crate) async fn get_with(&mut self, address: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::get(address);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&mut self, address: &str, fields: &[(&str, &str)]) -> Answer {
        self.post_with(address, fields, &[]).await
    }

    pub(crate) async fn post_with(
        &mut self,
        address: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(address)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(form.finish())).unwrap())
            .await
    }

    /// Fills in the form of an action.
    pub(crate) async fn act(&mut self, action: &str, on: &str, item: &str, reason: &str) -> Answer {
        self.fill_in([("do", action), ("on", on), ("item", item)], "", reason)
            .await
    }

    /// Fills in the form of an action that has a time.
    pub(crate) async fn act_for(
        &mut self,
        action: &str,
        on: &str,
        time: &str,
        reason: &str,
    ) -> Answer {
        self.fill_in([("do", action), ("on", on), ("item", "")], time, reason)
            .await
    }

    async fn fill_in(&mut self, what: [(&str, &str); 3], time: &str, reason: &str) -> Answer {
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(what)
            .finish();
        let asked = self.get(&format!("/act?{query}")).await;
        assert_eq!(asked.status, StatusCode::OK, "{}", asked.body);
        assert!(
            time.is_empty() || asked.body.contains("name=\"for\""),
            "it has a time: {}",
            asked.body
        );
        self.submit(&asked, &[("for", time), ("reason", reason)])
            .await
    }

    /// Sends the form of a page as browsers do: to its address, with its hidden fields and what is written into it.
    pub(crate) async fn submit(&mut self, asked: &Answer, written: &[(&str, &str)]) -> Answer {
        let (_, form) = asked.body.split_once("<form class=\"act").expect("a form");
        let form = form.split("</form>").next().unwrap();
        let text = |text: &str| {
            let text = text.replace("&lt;", "<").replace("&gt;", ">");
            text.replace("&quot;", "\"").replace("&amp;", "&")
        };
        let after = |part: &str, name: &str| {
            let (_, value) = part.split_once(name).expect("an attribute");
            text(value.split('"').next().unwrap())
        };
        let address = after(form, "action=\"");
        let hidden = form.split("<input type=\"hidden\" name=\"").skip(1);
        let hidden = hidden.map(|part| {
            let name = part.split('"').next().unwrap().to_owned();
            (name, after(part, "value=\""))
        });
        let written = written
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut fields: Vec<(String, String)> = hidden.chain(written).collect();
        for (_, value) in &mut fields {
            let lines = value.replace("\r\n", "\n").replace('\r', "\n");
            *value = lines.replace('\n', "\r\n");
        }
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        self.post(&address, &fields).await
    }

    /// A form token that is right, of a page that has nothing to send.
    pub(crate) async fn form_of_nothing(&mut self) -> String {
        self.get("/login").await.field("form")
    }
}

/// The next event of a stream of changes; `None` where it has ended.
pub(crate) async fn event(changes: &mut Body) -> Option<String> {
    let next = async {
        loop {
            let data = changes.frame().await?.unwrap().into_data().unwrap();
            let text = String::from_utf8(data.to_vec()).unwrap();
            // Those that keep the connection are none.
            if !text.starts_with(':') {
                return Some(text);
            }
        }
    };
    tokio::time::timeout(MINUTE, next).await.expect("in time")
}
