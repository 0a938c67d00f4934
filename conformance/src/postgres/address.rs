//! Where a server is, as the URL that drivers are given.

use std::fmt::Write;
use std::path::Path;
use std::str::FromStr;

use postgres::Config;
use postgres::config::Host;

use crate::fixture::Problem;

/// The parts of a URL that the suite varies.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: String,
    pub(super) application: String,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, Problem> {
        let config = Config::from_str(url)?;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            Some(Host::Unix(path)) => encoded(path),
            None => "localhost".to_owned(),
        };
        let user = config.get_user().unwrap_or("postgres").to_owned();
        Ok(Self {
            host,
            port: config.get_ports().first().copied().unwrap_or(5432),
            database: config.get_dbname().unwrap_or(&user).to_owned(),
            password: config
                .get_password()
                .map(|password| String::from_utf8_lossy(password).into_owned()),
            user,
            application: config.get_application_name().unwrap_or_default().to_owned(),
        })
    }

    pub(super) fn url(&self) -> String {
        let password = self
            .password
            .as_ref()
            .map(|password| format!(":{password}"))
            .unwrap_or_default();
        format!(
            "postgres://{}{password}@{}:{}/{}?application_name={}",
            self.user, self.host, self.port, self.database, self.application
        )
    }

    pub(super) fn config(&self) -> Result<Config, Problem> {
        Ok(Config::from_str(&self.url())?)
    }
}

fn encoded(path: &Path) -> String {
    let mut host = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        // Writing to a string does not fail.
        let _ok = write!(host, "%{byte:02X}");
    }
    host
}
