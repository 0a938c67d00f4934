//! Configurations and their limits.

use std::time::Duration;

use lockapi::driver::not_understood;
use lockapi::{Error, ErrorKind};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// How long the server has to accept a connection if nothing else is set.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the driver has where a program sets nothing.
const DRIVER_KEEPALIVES_IDLE: Duration = Duration::from_secs(2 * 3600);

/// The configuration that a URL describes, [with limits](with_limits).
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed, or that names several hosts.
pub fn parse_config(url: &str) -> lockapi::Result<Config> {
    // The parser's error may quote the URL, which may hold a password.
    let config: Config = url.parse().map_err(|_| not_understood())?;
    // The driver would take the one where the other does not answer; other drivers take the option alone. A port before
    // the path has an empty host beside it.
    let mut hosts: Vec<_> = config.get_hosts().iter().collect();
    hosts.retain(|host| !matches!(host, Host::Tcp(name) if name.is_empty()));
    hosts.dedup();
    if hosts.len() > 1 || config.get_hostaddrs().len() > 1 {
        let message =
            "the URL has a host before the path, and the option host; allowed is one of them";
        return Err(Error::new(ErrorKind::Invalid, "connect", message));
    }
    Ok(with_limits(config))
}

/// A network that lost the server is noticed in seconds, unless the program has set something of it.
#[must_use]
pub fn with_limits(mut config: Config) -> Config {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    let keepalives = (
        config.get_keepalives_idle(),
        config.get_keepalives_interval(),
        config.get_keepalives_retries(),
    );
    if keepalives == (DRIVER_KEEPALIVES_IDLE, None, None) {
        config
            .keepalives_idle(CONNECT_TIMEOUT)
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(11));
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_named() {
        for one in [
            "postgres:///app?host=/run/postgresql",
            "postgres://u@:5433/app?host=/run/postgresql",
            "postgres://one/app?host=one",
        ] {
            assert!(parse_config(one).is_ok(), "{one}");
        }
        let error = parse_config("postgres://u:secret@one/app?host=two").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error.to_string().contains("; allowed is one of them"),
            "{error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn what_the_program_has_set_of_the_network_stays() {
        let config = parse_config("postgres://host/app").unwrap();
        assert_eq!(config.get_keepalives_idle(), CONNECT_TIMEOUT);
        assert!(config.get_tcp_user_timeout().is_some());
        let url = "postgres://host/app?keepalives_interval=60&connect_timeout=1";
        let config = parse_config(url).unwrap();
        assert_eq!(config.get_keepalives_idle(), DRIVER_KEEPALIVES_IDLE);
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(1)));
    }
}
