//! Which database, and connecting to it.

use std::env;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use lockapi::{Backend, BackendOptions};

use crate::failure::{Failure, Result};

/// The application name unless the caller has set one: what the audit log and `pg_stat_activity` show.
const APPLICATION: &str = "lockapi";

/// A URL, which may hold a password and therefore is never shown.
#[derive(Clone)]
pub(crate) struct Url(String);

impl FromStr for Url {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Url(..)")
    }
}

/// Which database, and which of its namespaces.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Database")]
pub(crate) struct Place {
    /// The database, as postgres://user@host:port/database; DATABASE_URL unless given, and what neither says comes
    /// from the PG variables and the password file, as with psql. Others on this machine can read it in the list of
    /// processes: a password belongs in the password file, PGPASSWORD or DATABASE_URL
    #[arg(long, global = true, value_name = "URL")]
    url: Option<Url>,

    /// The namespace of the programs; LOCKAPI_NAMESPACE unless given, or else `default`
    #[arg(long, global = true, value_name = "NAME")]
    namespace: Option<String>,
}

impl Place {
    /// The namespace.
    ///
    /// # Errors
    /// For a variable that is not text.
    pub(crate) fn namespace(&self) -> Result<String> {
        if let Some(name) = &self.namespace {
            return Ok(name.clone());
        }
        Ok(variable("LOCKAPI_NAMESPACE")?.unwrap_or_else(|| "default".to_owned()))
    }

    /// The URL to connect to.
    ///
    /// # Errors
    /// For what the PG variables say and this program does not support.
    pub(crate) fn url(&self) -> Result<String> {
        let given = match &self.url {
            Some(url) => Some(url.0.clone()),
            None => variable("DATABASE_URL")?,
        };
        let url = match given {
            Some(url) => url,
            None => of_variables(variable)?,
        };
        let named = variable("PGAPPNAME")?.is_some();
        Ok(if named { url } else { with_application(url) })
    }

    /// Options of a backend in the namespace.
    ///
    /// # Errors
    /// As for [`namespace`](Self::namespace).
    pub(crate) fn options(&self) -> Result<BackendOptions> {
        Ok(BackendOptions::default().namespace(self.namespace()?))
    }

    /// Connects.
    ///
    /// # Errors
    /// Where the database cannot be reached, is a standby, or is not understood.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn Backend>> {
        self.connect_with(self.options()?).await
    }

    /// Connects with options.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub(crate) async fn connect_with(&self, options: BackendOptions) -> Result<Arc<dyn Backend>> {
        Ok(lockapi_sqlx::connect_url_with(&self.url()?, options).await?)
    }
}

/// A variable of the environment; none where it is empty, as for psql.
fn variable(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(Failure::usage(format!(
            "the variable {name} is not UTF-8; allowed is text"
        ))),
    }
}

/// The URL that the PG variables make. The driver reads most of them itself.
fn of_variables(variable: impl Fn(&str) -> Result<Option<String>>) -> Result<String> {
    for unsupported in ["PGSERVICE", "PGSERVICEFILE"] {
        if variable(unsupported)?.is_some() {
            return Err(Failure::usage(format!(
                "{unsupported} is set, and connection service files are not supported; allowed are --url, DATABASE_URL, \
                 and PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD"
            )));
        }
    }
    let wish = variable("PGTARGETSESSIONATTRS")?;
    let wish = match wish.as_deref() {
        // It is always the primary.
        None | Some("any") => String::new(),
        Some(wish) => format!("?target_session_attrs={wish}"),
    };
    let hosts = variable("PGHOST")?.filter(|hosts| hosts.contains(','));
    let Some(hosts) = hosts else {
        return Ok(format!("postgres://{wish}"));
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    if let Some(socket) = hosts.iter().find(|host| host.starts_with('/')) {
        return Err(Failure::usage(format!(
            "PGHOST names {socket:?} among several hosts; allowed are several names or addresses, or one directory"
        )));
    }
    let ports = variable("PGPORT")?.unwrap_or_default();
    let ports: Vec<&str> = ports.split(',').collect();
    if ports.len() != 1 && ports.len() != hosts.len() {
        return Err(Failure::usage(format!(
            "PGPORT names {} ports for {} hosts; allowed is one, or one for each",
            ports.len(),
            hosts.len()
        )));
    }
    let places = hosts.iter().enumerate().map(|(at, host)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or_default();
        // An address of version 6 has colons of its own.
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            (*host).to_owned()
        };
        if port.is_empty() {
            host
        } else {
            format!("{host}:{port}")
        }
    });
    let places: Vec<String> = places.collect();
    Ok(format!("postgres://{}{wish}", places.join(",")))
}

/// The same with an application name, unless it says one.
fn with_application(url: String) -> String {
    let options = url.split_once('?').map(|(_, options)| options);
    let mut names = options.into_iter().flat_map(|options| options.split('&'));
    if names.any(|option| option.starts_with("application_name=")) {
        return url;
    }
    let joint = match options {
        None => "?",
        Some("") => "",
        Some(_) => "&",
    };
    format!("{url}{joint}application_name={APPLICATION}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<String> {
        of_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            Ok(found.map(|(_, value)| (*value).to_owned()))
        })
    }

    #[test]
    fn variables_make_a_url() {
        assert_eq!(from(&[]).unwrap(), "postgres://");
        assert_eq!(from(&[("PGHOST", "one")]).unwrap(), "postgres://");
        let several = [("PGHOST", "one,::1"), ("PGPORT", "5433")];
        assert_eq!(from(&several).unwrap(), "postgres://one:5433,[::1]:5433");
        let each = [("PGHOST", "one,two"), ("PGPORT", "5433,5434")];
        assert_eq!(from(&each).unwrap(), "postgres://one:5433,two:5434");
        let wish = [("PGHOST", "one,two"), ("PGTARGETSESSIONATTRS", "primary")];
        assert_eq!(
            from(&wish).unwrap(),
            "postgres://one,two?target_session_attrs=primary"
        );
    }

    #[test]
    fn what_is_not_supported_is_told() {
        for variables in [
            [("PGSERVICE", "app"), ("PGHOST", "")].as_slice(),
            &[("PGHOST", "/run,one")],
            &[("PGHOST", "one,two"), ("PGPORT", "1,2,3")],
        ] {
            let told = from(variables).unwrap_err().to_string();
            assert!(told.contains("allowed"), "{told}");
        }
    }

    #[test]
    fn the_application_is_named_once() {
        for (url, named) in [
            ("postgres://h/d", "postgres://h/d?application_name=lockapi"),
            ("postgres://", "postgres://?application_name=lockapi"),
            (
                "postgres://h/d?sslmode=require",
                "postgres://h/d?sslmode=require&application_name=lockapi",
            ),
            (
                "postgres://h?application_name=cron",
                "postgres://h?application_name=cron",
            ),
        ] {
            assert_eq!(with_application(url.to_owned()), named);
        }
    }

    #[test]
    fn a_url_is_never_shown() {
        let url = Url::from_str("postgres://u:secret@h/d").unwrap();
        assert!(!format!("{url:?}").contains("secret"));
    }
}
