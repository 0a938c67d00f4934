//! URLs of several hosts.

use super::invalid;
use crate::error::{Error, Result};

/// What a URL of several hosts may say of the server it wants. It is always the primary.
const WANTED: [&str; 2] = ["read-write", "primary"];

/// The options that libpq would take several hosts from, which it asks one after the other.
const LISTS: [&str; 3] = ["host", "hostaddr", "port"];

/// The most hosts of a URL.
const MOST: usize = 16;

/// A URL for each of the hosts that a URL names, as in
/// `postgres://user@one:5432,two:5433/database?target_session_attrs=read-write`.
///
/// # Errors
/// `Invalid` for what is no URL of PostgreSQL, for a host that is empty, for more than 16 hosts, for options
/// that name several hosts, and for `target_session_attrs` that ask for anything but the primary.
pub fn each_host(url: &str) -> Result<Vec<String>> {
    let rest = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or_else(not_understood)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    // The part after it is not quoted: it may be a password.
    if names(tail).any(|name| name.contains('@')) {
        return Err(invalid(
            "the URL has an @ after the first / or ?; allowed are %2F for / and %3F for ? in a user or a \
             password, and %40 for @ in the name of a database",
        ));
    }
    if is_list(&hosts.replace(',', "")) {
        return Err(invalid(
            "the URL has a %2C, an encoded comma, before the path; allowed are several hosts with commas between them, \
             as in postgres://one:5432,two:5433/database",
        ));
    }
    let hosts: Vec<_> = hosts.split(',').collect();
    let tail = without_wish(tail, hosts.len() > 1)?;
    if hosts.len() > MOST {
        let message = format!(
            "the URL names {} hosts; allowed are 1 to {MOST}",
            hosts.len()
        );
        return Err(invalid(message));
    }
    if hosts.len() > 1 && hosts.contains(&"") {
        return Err(invalid(
            "the URL names several hosts, one of which is empty; allowed are hosts that are not empty",
        ));
    }
    let hosts = hosts.into_iter();
    Ok(hosts
        .map(|host| format!("postgres://{user}{host}{tail}"))
        .collect())
}

/// The error of a URL that a driver does not understand. What the driver says may quote the URL, which may hold a
/// password.
#[must_use]
pub fn not_understood() -> Error {
    invalid(
        "the URL cannot be parsed; allowed is postgres://user:password@host:port/database?options",
    )
}

/// The path, and the names of the options.
fn names(tail: &str) -> impl Iterator<Item = &str> {
    let (path, options) = tail.split_once('?').unwrap_or((tail, ""));
    let options = options.split('&');
    let names = options.map(|option| option.split_once('=').map_or(option, |(name, _)| name));
    std::iter::once(path).chain(names)
}

/// Path and options without those about the choice of a host, which not every driver knows.
fn without_wish(tail: &str, several: bool) -> Result<String> {
    let Some((path, options)) = tail.split_once('?') else {
        return Ok(tail.to_owned());
    };
    let (mut kept, mut seen) = (Vec::new(), Vec::new());
    for option in options.split('&') {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        let again = seen.contains(&name);
        seen.push(name);
        match option.split_once('=') {
            Some(("target_session_attrs", wanted)) if WANTED.contains(&wanted) => {}
            // What it is instead is not quoted: it may be a password.
            Some(("target_session_attrs", _)) => {
                return Err(invalid(
                    "the option target_session_attrs asks for another server than the primary; allowed is read-write, \
                     because locks exclude only there",
                ));
            }
            Some((name, value)) if LISTS.contains(&name) && (again || is_list(value)) => {
                return Err(invalid(format!(
                    "the option {name} names several hosts; allowed are several before the path, as in \
                     postgres://one:5432,two:5433/database"
                )));
            }
            Some((name, _)) if several && LISTS.contains(&name) => {
                return Err(invalid(format!(
                    "the option {name} would apply to each of the hosts; allowed are hosts and ports before the \
                     path, as in postgres://one:5432,two:5433/database"
                )));
            }
            // All are tried at the same time.
            Some(("load_balance_hosts", _)) if several => {}
            _ => kept.push(option),
        }
    }
    if kept.is_empty() {
        return Ok(path.to_owned());
    }
    Ok(format!("{path}?{}", kept.join("&")))
}

fn is_list(value: &str) -> bool {
    value.contains(',') || value.to_ascii_lowercase().contains("%2c")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn options_choose_no_host_among_several() {
        for option in ["host=one", "hostaddr=127.0.0.1", "port=1"] {
            let error = each_host(&format!("postgres://one,two/app?{option}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{option}: {error}");
            assert!(each_host(&format!("postgres:///app?{option}")).is_ok());
            let twice = each_host(&format!("postgres:///app?{option}&{option}"));
            assert_eq!(twice.unwrap_err().kind(), ErrorKind::Invalid, "{option}");
        }
        let quoted = each_host("postgres://one%2ctwo/app").unwrap_err();
        assert_eq!(quoted.kind(), ErrorKind::Invalid, "{quoted}");
        let balanced = "postgres://one,two/app?load_balance_hosts=random";
        assert_eq!(each(balanced), ["postgres://one/app", "postgres://two/app"]);
    }

    fn each(url: &str) -> Vec<String> {
        each_host(url).unwrap()
    }

    #[test]
    fn hosts_share_the_rest_of_the_url() {
        assert_eq!(each("postgres://host/app"), ["postgres://host/app"]);
        assert_eq!(each("postgresql:///app"), ["postgres:///app"]);
        assert_eq!(
            each(
                "postgres://u:p,w@one,two:5433/app?target_session_attrs=read-write&sslmode=require"
            ),
            [
                "postgres://u:p,w@one/app?sslmode=require",
                "postgres://u:p,w@two:5433/app?sslmode=require"
            ]
        );
        assert_eq!(
            each("postgres://one,two/app?user=u@server&sslrootcert=/run"),
            [
                "postgres://one/app?user=u@server&sslrootcert=/run",
                "postgres://two/app?user=u@server&sslrootcert=/run"
            ]
        );
        assert_eq!(
            each("postgres://one,[::1]:5433?target_session_attrs=primary"),
            ["postgres://one", "postgres://[::1]:5433"]
        );
    }

    #[test]
    fn what_is_not_understood_is_told() {
        let many = format!("postgres://{}h/app", "h,".repeat(16));
        for (url, told) in [
            ("mysql://host/app", "allowed is postgres://"),
            ("postgres://one,,two/app", "empty"),
            (
                "postgres://one,two/app?target_session_attrs=standby",
                "read-write",
            ),
            (&many, "17 hosts"),
            ("postgres://u:a/b@one,two/db", "%2F"),
            ("postgres://u:a?b@one,two/db", "%3F"),
            ("postgres:///db?host=one,two", "before the path"),
            ("postgres:///db?hostaddr=::1%2C::2", "before the path"),
            ("postgres://h/db?x=y&port=1,2", "before the path"),
        ] {
            let error = each_host(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}
