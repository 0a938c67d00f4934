//! Preparing the servers, databases and roles that cases ask for.

use std::fmt::Write;
use std::sync::Mutex;

use super::address::Address;
use super::observer::{Observer, literal};
use super::relay::Relay;
use crate::cluster::Cluster;
use crate::face::off_runtime;
use crate::fixture::{Place, Problem, SECRET};
use crate::proxy::Proxy;

/// A place that was prepared, with everything that it needs to stay.
pub(super) struct Site {
    /// Where backends connect.
    pub(super) address: Address,
    /// Where the suite itself connects.
    pub(super) direct: Address,
    /// The server, if it is the case's own.
    pub(super) own: Option<Mutex<Cluster>>,
    /// What removes the place again.
    pub(super) cleanup: Option<String>,
    /// The proxy, if there is one.
    pub(super) proxy: Option<Proxy>,
    /// The relay, if there is one.
    pub(super) relay: Option<Relay>,
}

/// Settings that break programs which rely on the defaults.
const HOSTILE: &[(&str, &str)] = &[
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("default_transaction_deferrable", "on"),
    ("synchronous_commit", "off"),
    ("search_path", "hostile, pg_catalog"),
    ("statement_timeout", "500ms"),
    ("lock_timeout", "1ms"),
    ("idle_in_transaction_session_timeout", "500ms"),
    ("idle_session_timeout", "500ms"),
    GERMAN,
    ("DateStyle", "SQL, DMY"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "Asia/Kathmandu"),
    ("bytea_output", "escape"),
    ("array_nulls", "off"),
    ("extra_float_digits", "-15"),
    ("standard_conforming_strings", "off"),
    ("enable_indexscan", "off"),
    ("plan_cache_mode", "force_custom_plan"),
    ("quote_all_identifiers", "on"),
];

/// Drivers that read the server's words must not depend on their language.
const GERMAN: (&str, &str) = ("lc_messages", "de_DE.UTF-8");

/// Settings under which a statement finds what others made, unless it says what it means.
const DECOYED: &[(&str, &str)] = &[("search_path", "hostile, pg_catalog, public")];

/// What a statement finds if it does not say which schema it means.
const DECOYS: &str = include_str!("decoys.sql");

/// Begins a text that changes functions or grants, which cannot be changed by two at once. Dropping
/// what a role owns takes its grants back.
const TURN: &str = "SELECT pg_advisory_xact_lock(-728, 1);";

pub(super) async fn prepare(place: Place) -> Result<Site, Problem> {
    let url = off_runtime(|| Cluster::shared().map(|cluster| cluster.url().to_owned()));
    let site = |mut address: Address| {
        address.application = format!("conf-{:016x}", fastrand::u64(..));
        Site {
            direct: address.clone(),
            address,
            own: None,
            cleanup: None,
            proxy: None,
            relay: None,
        }
    };
    let own = async |cluster: Result<Cluster, crate::cluster::ClusterError>| {
        let cluster = cluster?;
        let mut site = site(Address::parse(cluster.url())?);
        site.own = Some(Mutex::new(cluster));
        Ok::<_, Problem>(site)
    };
    match place {
        Place::Own => {
            let settings = [
                ("max_locks_per_transaction", "256"),
                // What is not flushed on purpose is lost in a crash.
                ("wal_writer_delay", "10s"),
            ];
            own(off_runtime(move || Cluster::private(&settings)).await).await
        }
        Place::SetClock => own(off_runtime(Cluster::with_clock).await).await,
        Place::Cramped => {
            let settings = [
                ("max_locks_per_transaction", "10"),
                ("max_connections", "20"),
            ];
            own(off_runtime(move || Cluster::private(&settings)).await).await
        }
        Place::Standby => {
            let scripts: Vec<_> = lockapi::MIGRATIONS.iter().map(|one| one.sql).collect();
            own(off_runtime(move || Cluster::standby(&scripts)).await).await
        }
        Place::Hosts | Place::NoPrimary => {
            several_hosts(site(Address::parse(&url.await?)?), place).await
        }
        Place::Password | Place::WrongPassword => {
            with_password(
                own(off_runtime(|| Cluster::private(&[])).await).await?,
                place,
            )
            .await
        }
        Place::Shared => Ok(site(Address::parse(&url.await?)?)),
        Place::Empty => {
            let mut site = site(Address::parse(&url.await?)?);
            let database = format!("conf_{:016x}", fastrand::u64(..));
            let observer = Observer::new(site.direct.config()?);
            observer
                .try_rows(format!("CREATE DATABASE {database}"))
                .await?;
            site.cleanup = Some(format!("DROP DATABASE {database} WITH (FORCE)"));
            site.address.database = database;
            Ok(site)
        }
        Place::PoorRole => with_role(site(Address::parse(&url.await?)?), &[]).await,
        Place::HostileRole => with_role(site(Address::parse(&url.await?)?), HOSTILE).await,
        Place::HostileSuperuser => as_hostile_superuser(site(Address::parse(&url.await?)?)).await,
        Place::Relay => {
            let mut site = site(Address::parse(&url.await?)?);
            relay(&mut site)?;
            Ok(site)
        }
        Place::GermanRole => with_role(site(Address::parse(&url.await?)?), &[GERMAN]).await,
        Place::DecoyRole => with_role(site(Address::parse(&url.await?)?), DECOYED).await,
        Place::Proxy
        | Place::SessionProxy
        | Place::StatementProxy
        | Place::HostileProxy
        | Place::RelayedProxy => behind_proxy(site(Address::parse(&url.await?)?), place).await,
    }
}

/// Names hosts beside the server, or instead of it: one that refuses, and a standby.
async fn several_hosts(mut site: Site, place: Place) -> Result<Site, Problem> {
    let standby = off_runtime(|| Cluster::standby(&[])).await?;
    let port = standby.port()?;
    let refuses = "127.0.0.1:1";
    if place == Place::Hosts {
        site.address.host = format!("{refuses},127.0.0.1:{port},{}", site.address.host);
    } else {
        site.address.host = format!("{refuses},127.0.0.1");
        site.address.port = port;
    }
    site.own = Some(Mutex::new(standby));
    Ok(site)
}

/// Connects as a role that needs a password.
async fn with_password(mut site: Site, place: Place) -> Result<Site, Problem> {
    let right = if place == Place::Password {
        SECRET
    } else {
        "another"
    };
    let role = "guarded";
    let observer = Observer::new(site.direct.config()?);
    observer
        .try_rows(format!(
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE {role} LOGIN SUPERUSER PASSWORD {}",
            literal(right)
        ))
        .await?;
    demand_passwords(&observer, role).await?;
    role.clone_into(&mut site.address.user);
    site.address.password = Some(SECRET.to_owned());
    Ok(site)
}

/// Puts a proxy before the server.
async fn behind_proxy(mut site: Site, place: Place) -> Result<Site, Problem> {
    if place == Place::HostileProxy {
        site = with_role(site, HOSTILE).await?;
    }
    // With one session the clients of the proxy meet in it; with more they move about.
    let (sessions, mode) = match place {
        Place::HostileProxy => (1, "transaction"),
        Place::SessionProxy => (20, "session"),
        Place::StatementProxy => (3, "statement"),
        _ => (8, "transaction"),
    };
    let (user, server) = (site.address.user.clone(), site.direct.port);
    let proxy = off_runtime(move || Proxy::start(server, &user, sessions, mode)).await?;
    "127.0.0.1".clone_into(&mut site.address.host);
    site.address.port = proxy.port();
    site.proxy = Some(proxy);
    if place == Place::RelayedProxy {
        relay(&mut site)?;
    }
    Ok(site)
}

/// Puts a relay before where backends connect.
fn relay(site: &mut Site) -> Result<(), Problem> {
    let relay = Relay::start(site.address.port)?;
    "127.0.0.1".clone_into(&mut site.address.host);
    site.address.port = relay.port();
    site.relay = Some(relay);
    Ok(())
}

/// All cases run as such roles at once, which keeps a small machine busy for longer than half a second.
async fn as_hostile_superuser(site: Site) -> Result<Site, Problem> {
    let patient = HOSTILE.iter().map(|(name, value)| match *value {
        "500ms" => (*name, "3s"),
        value => (*name, value),
    });
    let settings: Vec<_> = patient.collect();
    let site = with_role(site, &settings).await?;
    let observer = Observer::new(site.direct.config()?);
    let promote = format!("ALTER ROLE {} SUPERUSER", site.address.user);
    observer.try_rows(promote).await?;
    Ok(site)
}

/// Connects as a role of the place's own, which has only the rights that it needs.
async fn with_role(mut site: Site, settings: &[(&str, &str)]) -> Result<Site, Problem> {
    let role = format!("conf_{:016x}", fastrand::u64(..));
    let observer = Observer::new(site.direct.config()?);
    if settings.iter().any(|(name, _)| *name == "search_path") {
        observer.try_rows(DECOYS).await?;
    }
    let grants = lockapi::rights::grants(lockapi::rights::Role::Worker, &role)?;
    let mut script = format!("CREATE ROLE {role} LOGIN; {grants}");
    // `idle_session_timeout` came with version 14.
    let known = observer
        .try_rows("SELECT lower(name) FROM pg_settings")
        .await?
        .concat();
    for (name, value) in settings {
        if !known.contains(&name.to_lowercase()) {
            continue;
        }
        let value = if *name == "search_path" {
            (*value).to_owned()
        } else {
            literal(value)
        };
        // Writing to a string does not fail.
        let _ok = write!(script, "ALTER ROLE {role} SET {name} = {value};");
    }
    observer.try_rows(format!("{TURN}{script}")).await?;
    site.cleanup = Some(format!("{TURN}DROP OWNED BY {role}; DROP ROLE {role}"));
    site.address.user = role;
    Ok(site)
}

/// Lets a role in only with its password.
async fn demand_passwords(observer: &Observer, role: &str) -> Result<(), Problem> {
    let file = observer.try_rows("SHOW hba_file").await?.concat().concat();
    let rules = std::fs::read_to_string(&file)?;
    std::fs::write(
        &file,
        format!("host all {role} 127.0.0.1/32 scram-sha-256\n{rules}"),
    )?;
    observer.try_rows("SELECT pg_reload_conf()").await?;
    Ok(())
}
