//! A database of a test's own, with roles of its own.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockapi::driver::{Connection as _, Inline};
use lockapi::suite::driver::Operation;
use lockapi::{Backend, BackendOptions, ErrorKind, MIGRATIONS};
use lockapi_conformance::cluster::Cluster;
use lockapi_postgres::Borrowed;
use postgres::{Client, NoTls, SimpleQueryMessage};

pub(crate) async fn connect(url: &str) -> Arc<dyn Backend> {
    let options = BackendOptions::default().namespace("upgrades");
    let backend = lockapi_sqlx::connect_url_with(url, options).await;
    backend.expect("a backend")
}

/// It is a refusal that says all of that.
pub(crate) fn says(error: &lockapi::Error, parts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for part in parts {
        assert!(
            error.to_string().contains(part),
            "`{part}` is missing: {error}"
        );
    }
}

pub(crate) struct OwnDatabase {
    server: String,
    name: String,
    roles: Vec<String>,
}

impl OwnDatabase {
    pub(crate) fn empty() -> Self {
        let database = Self::named();
        let name = &database.name;
        run(&database.server, &format!("CREATE DATABASE {name}"));
        database
    }

    /// Whose texts are in this encoding.
    pub(crate) fn encoded(encoding: &str) -> Self {
        let database = Self::named();
        let name = &database.name;
        run(
            &database.server,
            &format!(
                "CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            ),
        );
        database
    }

    /// With the migrations up to that version alone.
    pub(crate) fn at(version: i64) -> Self {
        let database = Self::empty();
        for one in MIGRATIONS.iter().filter(|one| one.version <= version) {
            database.sql(&format!(
                "BEGIN; {}; INSERT INTO lockapi.migration (version, name, checksum) VALUES ({}, '{}', '{}'); COMMIT",
                one.sql,
                one.version,
                one.name,
                one.checksum()
            ));
        }
        database
    }

    pub(crate) fn migrated() -> Self {
        Self::at(i64::MAX)
    }

    /// With all that is in this one now; its sessions are ended.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::named();
        let (original, name) = (&self.name, &copy.name);
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{original}'"
        );
        let make = format!("CREATE DATABASE {name} TEMPLATE {original}");
        let began = Instant::now();
        while let Err(error) =
            try_run(&self.server, &end).and_then(|_| try_run(&self.server, &make))
        {
            assert!(began.elapsed() < Duration::from_secs(30), "{error}");
        }
        copy
    }

    fn named() -> Self {
        let server = match Cluster::shared() {
            Ok(cluster) => cluster.url().to_owned(),
            Err(error) => panic!("no server: {error}"),
        };
        Self {
            server,
            name: format!("own_{:016x}", fastrand::u64(..)),
            roles: Vec::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').expect("a path");
        format!("{server}/{}", self.name)
    }

    /// Makes a role, which has no rights yet.
    pub(crate) fn role(&mut self, what: &str) -> String {
        let role = format!("{what}_{}", self.name);
        run(&self.server, &format!("CREATE ROLE {role} LOGIN"));
        self.roles.push(role.clone());
        role
    }

    pub(crate) fn url_as(&self, role: &str) -> String {
        self.url().replacen("//postgres@", &format!("//{role}@"), 1)
    }

    /// Runs a person's SQL; answers the first column of its rows.
    pub(crate) fn sql(&self, sql: &str) -> Vec<String> {
        run(&self.url(), sql)
    }

    pub(crate) fn number(&self, sql: &str) -> i64 {
        let rows = self.sql(sql);
        rows.concat().parse().expect("a number")
    }
}

impl Drop for OwnDatabase {
    fn drop(&mut self) {
        let drop_database = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let drop_roles = self.roles.iter().map(|role| format!("DROP ROLE {role}"));
        for sql in std::iter::once(drop_database).chain(drop_roles) {
            // The server is one of a test run.
            let _done = try_run(&self.server, &sql);
        }
    }
}

fn run(url: &str, sql: &str) -> Vec<String> {
    try_run(url, sql).unwrap_or_else(|error| panic!("{error}: {sql}"))
}

/// On a thread, because this library blocks.
fn try_run(url: &str, sql: &str) -> Result<Vec<String>, String> {
    let query = || -> Result<Vec<String>, String> {
        let mut client = Client::connect(url, NoTls).map_err(|error| told(&error))?;
        let rows = client.simple_query(sql).map_err(|error| told(&error))?;
        let first = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        };
        Ok(rows.iter().filter_map(first).collect())
    };
    thread::scope(|scope| scope.spawn(query).join().expect("an answer"))
}

fn told(error: &postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// Runs one operation on a connection of the `postgres` crate.
pub(crate) fn perform<O: Operation>(client: &mut Client, one: O) -> O::Output {
    let performed = pollster::block_on(Inline(Borrowed(client)).perform(&[one]));
    performed.expect("answered").remove(0)
}
