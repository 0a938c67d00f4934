//! Who is let in.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{HOST, LOCATION};
use lockapi::queue::Job;
use lockapi_console::web::{Visitor, WebOptions, service};

use crate::visitor::{Browser, backend, event};

const TOKEN: &str = "a token that nobody guesses";

#[tokio::test]
async fn without_a_token_only_this_machine_looks() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new());
    assert_eq!(browser.get("/queues").await.status, StatusCode::OK);
    for (header, value) in [
        ("x-forwarded-for", "10.0.0.7"),
        ("x-forwarded-proto", "https"),
        ("cf-connecting-ip", "10.0.0.7"),
        ("forwarded", "for=10.0.0.7"),
        ("via", "1.1 proxy"),
    ] {
        let refused = browser.get_with("/queues", &[(header, value)]).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{header}");
    }
    for peer in ["10.0.0.7:1", "[fe80::1]:1", "[::ffff:10.0.0.7]:1"] {
        browser.peer = Some(peer.parse().unwrap());
        for address in [
            "/",
            "/queues",
            "/live?screen=queues",
            "/metrics",
            "/act?do=pause&on=q",
            "/nothing",
        ] {
            let refused = browser.get(address).await;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{peer} {address}");
            assert!(!refused.body.contains("<main"), "{}", refused.body);
        }
    }
    for peer in ["[::1]:1", "[::ffff:127.0.0.1]:1", "127.8.8.8:1"] {
        browser.peer = Some(peer.parse().unwrap());
        assert_eq!(
            browser.get("/queues").await.status,
            StatusCode::OK,
            "{peer}"
        );
    }
    // Mounted in a program that does not tell who asks.
    browser.peer = None;
    assert_eq!(browser.get("/queues").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn names_of_others_that_lead_here_are_refused() {
    let backend = backend().await;
    let options = WebOptions::new().host("admin.example.com");
    let mut browser = Browser::of(&backend, options.token(TOKEN).unwrap());
    let bearer = format!("Bearer {TOKEN}");
    for host in [
        "rebound.evil.example",
        "localhost.evil.example:7070",
        "127.0.0.1.evil.example",
    ] {
        for address in ["/queues", "/login", "/metrics", "/assets/live.js"] {
            let headers = [(HOST.as_str(), host), ("authorization", bearer.as_str())];
            let refused = browser.get_with(address, &headers).await;
            assert_eq!(
                refused.status,
                StatusCode::MISDIRECTED_REQUEST,
                "{host} {address}"
            );
        }
    }
    for host in ["admin.example.com", "127.0.0.1:7070", "[::1]:7070"] {
        let headers = [(HOST.as_str(), host), ("authorization", bearer.as_str())];
        let served = browser.get_with("/queues", &headers).await;
        assert_eq!(served.status, StatusCode::OK, "{host}");
    }
    let two = [
        (HOST.as_str(), "localhost"),
        (HOST.as_str(), "evil.example"),
    ];
    assert_eq!(
        browser.get_with("/queues", &two).await.status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn a_token_signs_in_and_out() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new().token(TOKEN).unwrap());
    browser.peer = Some("10.0.0.7:1".parse().unwrap());
    let sent = browser.get("/queues").await;
    assert_eq!(
        (sent.status, sent.header(LOCATION.as_str())),
        (StatusCode::SEE_OTHER, "/login")
    );
    for address in ["/metrics", "/live?screen=queues"] {
        assert_eq!(
            browser.get(address).await.status,
            StatusCode::UNAUTHORIZED,
            "{address}"
        );
    }
    let form = browser.get("/login").await.field("form");
    let wrong = browser
        .post("/login", &[("form", &form), ("token", "another")])
        .await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    let forged = browser
        .post("/login", &[("form", "0"), ("token", TOKEN)])
        .await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    let signed_in = browser
        .post("/login", &[("form", &form), ("token", TOKEN)])
        .await;
    assert_eq!(signed_in.status, StatusCode::SEE_OTHER);
    let home = browser.get("/").await;
    assert_eq!(home.status, StatusCode::OK);
    assert!(!home.body.contains(TOKEN));

    let session = browser.cookies.clone();
    let refused = browser.post("/logout", &[("form", "0")]).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let form = home.field("form");
    assert_eq!(
        browser.post("/logout", &[("form", &form)]).await.status,
        StatusCode::SEE_OTHER
    );
    // What somebody has kept of it is worth nothing.
    browser.cookies = session;
    assert_eq!(browser.get("/queues").await.status, StatusCode::SEE_OTHER);

    let headers = [("authorization", "Bearer another that is long enough")];
    assert_eq!(
        browser.get_with("/metrics", &headers).await.status,
        StatusCode::UNAUTHORIZED
    );
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str())];
    assert_eq!(
        browser.get_with("/metrics", &headers).await.status,
        StatusCode::OK
    );
    let error = WebOptions::new().token("short").unwrap_err();
    assert!(error.to_string().contains("allowed are 16"), "{error}");
    assert!(!format!("{:?}", WebOptions::new().token(TOKEN)).contains("nobody"));
}

#[tokio::test]
async fn changes_are_told_until_the_visitor_signs_out() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new().token(TOKEN).unwrap());
    let form = browser.get("/login").await.field("form");
    let fields = [("form", &*form), ("token", TOKEN)];
    browser.post("/login", &fields).await;
    let mut changes = browser.changes("/live?screen=queues").await;
    let told = event(&mut changes).await.unwrap();
    assert!(told.contains("<h1>Queues</h1>"), "{told}");
    browser.post("/logout", &[("form", &*form)]).await;
    // Of what happens now nothing is told.
    let queue = backend.queue("mails").unwrap();
    queue.push(Job::new("send", &1).unwrap()).await.unwrap();
    assert_eq!(event(&mut changes).await, None);
}

#[tokio::test]
async fn a_hook_of_the_program_decides_and_the_page_is_mounted_anywhere() {
    let backend = backend().await;
    let options = WebOptions::new().hook(|request| {
        let user = request.headers.get("x-user")?.to_str().ok()?;
        Some(Visitor::new(user).may_act(user == "ada"))
    });
    let router = Router::new().nest("/ops/lockapi", service(backend, options));
    let mut browser = Browser::on(router);
    browser.peer = None;
    assert_eq!(
        browser.get("/ops/lockapi/queues").await.status,
        StatusCode::FORBIDDEN
    );
    for (user, may_act) in [("ada", true), ("bob", false)] {
        let seen = browser
            .get_with("/ops/lockapi/queues", &[("x-user", user)])
            .await;
        assert_eq!(seen.status, StatusCode::OK);
        for address in [
            "href=\"/ops/lockapi/leases\"",
            "src=\"/ops/lockapi/assets/live.js\"",
            "data-live=\"/ops/lockapi/live?",
        ] {
            assert!(seen.body.contains(address), "{address}: {}", seen.body);
        }
        let asked = browser
            .get_with("/ops/lockapi/act?do=pause&on=q", &[("x-user", user)])
            .await;
        assert_eq!(asked.status == StatusCode::OK, may_act, "{user}");
    }
    assert_eq!(
        browser
            .get_with("/ops/lockapi", &[("x-user", "bob")])
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        browser.get("/ops/lockapi/assets/style.css").await.status,
        StatusCode::OK
    );
}
