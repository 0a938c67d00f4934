//! `lockapi web`.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::net::TcpListener;

use super::guard::host_name;
use super::serve::{BOUNDS, serve};
use super::{WebOptions, service};
use crate::arguments::Global;
use crate::common::close;
use crate::exit::Exit;
use crate::failure::{Failure, Result};

/// The variable that may have the token.
const TOKEN: &str = "LOCKAPI_WEB_TOKEN";
/// Statements of the page take no longer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Serve the state of the database as a page
///
/// Read-only, and for this machine only, unless the options say otherwise. The page is plain HTTP: let others in
/// through a proxy that encrypts. /metrics has the same numbers for Prometheus.
#[derive(Clone, Debug, Args)]
pub struct Web {
    /// The address to listen on; another than one of this machine takes a token
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,

    /// Allow pause, resume, cancel, run now, retry, release and so on, each with a reason that is audited
    #[arg(long)]
    allow_actions: bool,

    /// Show the payloads and headers of jobs and the statements of sessions
    #[arg(long)]
    payloads: bool,

    /// A file with the token to sign in with; LOCKAPI_WEB_TOKEN unless given. Prometheus sends it as a bearer
    /// token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// A name under which browsers ask for the page, such as admin.example.com, besides localhost and addresses; may be
    /// repeated
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    host: Vec<String>,
}

/// Where the page is.
#[derive(Debug, Serialize)]
struct Listening {
    url: String,
}

impl Web {
    fn token(&self) -> Result<Option<String>> {
        if let Some(path) = &self.token_file {
            let text = fs::read_to_string(path).map_err(|error| {
                Failure::usage(format!("{} cannot be read: {error}", path.display()))
            })?;
            return Ok(Some(text.trim().to_owned()));
        }
        match env::var(TOKEN) {
            Ok(token) if !token.is_empty() => Ok(Some(token.trim().to_owned())),
            Err(env::VarError::NotUnicode(_)) => Err(Failure::usage(format!(
                "the variable {TOKEN} is not UTF-8; allowed is text"
            ))),
            _ => Ok(None),
        }
    }

    fn options(&self, token: Option<&str>) -> Result<WebOptions> {
        let mut options = WebOptions::new()
            .actions(self.allow_actions)
            .payloads(self.payloads);
        for host in &self.host {
            options = options.host(host);
        }
        match token {
            Some(token) => Ok(options.token(token)?),
            None if self.listen.ip().is_loopback() => Ok(options),
            None => Err(Failure::usage(format!(
                "{} can be reached from other machines, and there is no token; allowed are an address of this machine, \
                 or --token-file or {TOKEN}",
                self.listen
            ))),
        }
    }

    pub(crate) async fn run(&self, global: &Global) -> Result<Exit> {
        let options = self.options(self.token()?.as_deref())?;
        let backend = global.place.options()?.timeout(TIMEOUT).notes(false);
        let backend = global.place.connect_with(backend).await?;
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            let message = format!("{} cannot be listened on: {error}", self.listen);
            Failure::new(Exit::Failed, message).advise("Choose another address with --listen.")
        })?;
        let failed = |error: std::io::Error| {
            Failure::new(Exit::Failed, format!("the page cannot be served: {error}"))
        };
        let address = listener.local_addr().map_err(failed)?;
        let url = format!("http://{address}/");
        global
            .output()
            .value(&Listening { url }, |told| told.url.clone())?;
        let router = service(backend.clone(), options);
        serve(listener, router, BOUNDS, stopped()).await;
        close(&*backend).await;
        Ok(Exit::Success)
    }
}

/// Pages that are told of changes never end by themselves, so nothing is waited for.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        // Without the signals the defaults end the program.
        Err(_) => std::future::pending().await,
    }
}
