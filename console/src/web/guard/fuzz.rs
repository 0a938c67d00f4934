//! What browsers, proxies and pages of others may send.

use std::net::Ipv4Addr;

use lockapi_fuzz::{bytes_like, check, text_like};
use proptest::collection::vec;
use proptest::{prop_assert, prop_assert_eq};

use super::*;

const HOSTS: [&str; 21] = [
    "localhost",
    "LOCALHOST:7070",
    "127.0.0.1:7070",
    "[::1]:7070",
    "[::1]",
    "::1",
    "10.0.0.7",
    "admin.example.com",
    "Admin.Example.com.:443",
    "evil.example",
    "localhost.evil.example",
    "admin.example.com.evil",
    "admin.example.com@evil.example",
    "[::1.]",
    "[::1].evil.example",
    "[::1]:evil.example",
    "localhost:evil.example",
    "localhost:",
    "127.1",
    "0x7f000001",
    "",
];

/// A host with a port that may be missing, by RFC 3986; names in lower case, without the last dot.
fn name(host: &str) -> Option<String> {
    let end = host.find(']').map_or(0, |at| at + 1);
    let end = end + host[end..].find(':').unwrap_or(host.len() - end);
    let (name, port) = host.split_at(end);
    if !port.chars().skip(1).all(|letter| letter.is_ascii_digit()) {
        return None;
    }
    if let Some(address) = name.strip_prefix('[') {
        let address = address.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?;
        return Some(address.to_string());
    }
    let name = name.to_ascii_lowercase();
    Some(name.strip_suffix('.').unwrap_or(&name).to_owned())
}

#[test]
fn hosts_are_those_of_this_page() {
    let allowed = ["admin.example.com".to_owned()];
    check(HOSTS.map(str::to_owned), &text_like(&HOSTS), |host| {
        let expected = name(&host).is_some_and(|name| {
            let is_address = name.parse::<Ipv4Addr>().is_ok() || name.parse::<Ipv6Addr>().is_ok();
            is_address || ["localhost", "admin.example.com"].contains(&&*name)
        });
        prop_assert_eq!(is_allowed(&host, &allowed), expected);
        Ok(())
    });
}

/// A name that the page is started with is one that it is asked for by.
#[test]
fn names_of_hosts_are_asked_for() {
    check(HOSTS.map(str::to_owned), &text_like(&HOSTS), |text| {
        if let Ok(name) = host_name(&text) {
            prop_assert_eq!(host_name(&name), Ok(name.clone()));
            let host = match name.parse::<Ipv6Addr>() {
                Ok(_) => format!("[{name}]"),
                Err(_) => name.clone(),
            };
            for asked in [&*host, &host.to_ascii_uppercase(), &format!("{host}:7070")] {
                prop_assert!(is_allowed(asked, std::slice::from_ref(&name)), "{asked}");
            }
            prop_assert!(name.parse::<IpAddr>().is_ok() || !name.contains([':', '/', '@', '[']));
        }
        Ok(())
    });
}

fn request(headers: &[(HeaderName, Vec<u8>)]) -> Request {
    let mut request = Request::new(Body::empty());
    for (name, value) in headers {
        // Others do not come through.
        if let Ok(value) = HeaderValue::from_bytes(value) {
            request.headers_mut().append(name, value);
        }
    }
    request
}

#[test]
fn requests_name_one_host() {
    let lines = HOSTS.map(|host| host.as_bytes().to_vec());
    let known = lines
        .clone()
        .map(|line| vec![line])
        .into_iter()
        .chain([vec![], vec![lines[0].clone(); 2]]);
    check(known, &vec(bytes_like(lines.to_vec()), 0..3), |lines| {
        let lines: Vec<_> = lines.into_iter().map(|line| (HOST, line)).collect();
        let request = request(&lines);
        let sent: Vec<_> = request
            .headers()
            .get_all(HOST)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        match host_of(&request) {
            Ok(host) => {
                prop_assert_eq!(sent, [host.as_bytes()]);
                prop_assert!(!host.is_empty() && !host.contains('@'));
            }
            Err(told) => {
                let strange = |line: &&[u8]| {
                    line.is_empty()
                        || line.contains(&b'@')
                        || !line
                            .iter()
                            .all(|byte| (32..127).contains(byte) || *byte == b'\t')
                };
                prop_assert!(sent.len() != 1 || sent.iter().any(strange), "{told}");
            }
        }
        Ok(())
    });
}

#[test]
fn cookies_are_found_by_their_names() {
    let lines = [
        "lockapi_session=abc",
        "a=b; lockapi_session=abc; c=d",
        "lockapi_session=; lockapi_session=x",
        "xlockapi_session=abc",
        "lockapi_session",
        "lockapi_session = abc",
        "lockapi_session=a=b",
        ";;",
        "lockapi_session=\u{e4}",
    ];
    let known = lines.map(|line| vec![line.as_bytes().to_vec()]);
    let line = bytes_like(lines.map(|line| line.as_bytes().to_vec()).to_vec());
    check(known, &vec(line, 0..3), |lines| {
        let lines: Vec<_> = lines.into_iter().map(|line| (COOKIE, line)).collect();
        let request = request(&lines);
        let mut expected = None;
        for line in request.headers().get_all(COOKIE) {
            let Ok(line) = line.to_str() else { continue };
            for pair in line.split(';').map(str::trim) {
                let value = pair
                    .strip_prefix(SESSION)
                    .and_then(|rest| rest.strip_prefix('='));
                expected = expected.or(value.map(str::to_owned));
            }
        }
        prop_assert_eq!(cookie(request.headers(), SESSION), expected);
        Ok(())
    });
}

/// Whatever a page of others sends along, its requests are not taken for those of this page.
#[test]
fn origins_are_compared_as_a_whole() {
    let origins = [
        "http://localhost:7070",
        "https://localhost:7070",
        "http://LOCALHOST:7070",
        "http://localhost:8080",
        "http://localhost:7070.evil.example",
        "http://evil.example/localhost:7070",
        "http://user@localhost:7070",
        "null",
        "localhost:7070",
        "",
    ];
    let known = origins.map(|origin| origin.as_bytes().to_vec());
    check(known.clone(), &bytes_like(known.to_vec()), |origin| {
        let request = request(&[(ORIGIN, origin)]);
        let origin = request.headers().get(ORIGIN).map(HeaderValue::as_bytes);
        let own = origin.is_none_or(|origin| {
            let at = origin.windows(3).position(|it| it == b"://");
            at.is_some_and(|at| origin[at + 3..].eq_ignore_ascii_case(b"localhost:7070"))
                && origin
                    .iter()
                    .all(|byte| (32..127).contains(byte) || *byte == b'\t')
        });
        prop_assert_eq!(is_own(request.headers(), "localhost:7070").is_ok(), own);
        Ok(())
    });
}

/// Addresses of the page stay at its host, wherever it is mounted.
#[test]
fn bases_stay_at_the_host() {
    let paths = [
        "/",
        "/ops",
        "/ops/",
        "//evil.example",
        "/a/b/",
        "/\\evil.example",
        "/%2F%2Fevil",
        "/ops//",
    ];
    let known = paths.map(|path| (path.to_owned(), "/jobs".to_owned()));
    check(
        known,
        &(text_like(&paths), text_like(&["/", "/jobs", "/job"])),
        |(mounted, inner)| {
            let whole = format!("{}{inner}", mounted.trim_end_matches('/'));
            let (Ok(whole), Ok(inner)) = (whole.parse::<axum::http::Uri>(), inner.parse()) else {
                return Ok(());
            };
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = inner;
            request.extensions_mut().insert(OriginalUri(whole.clone()));
            let base = base(&request);
            prop_assert!(base.is_empty() || whole.path().starts_with(&*base));
            prop_assert!(base.is_empty() || base.starts_with('/'));
            prop_assert!(!base.starts_with("//") && !base.contains('\\') && !base.ends_with('/'));
            Ok(())
        },
    );
}
