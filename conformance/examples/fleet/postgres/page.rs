//! The page of the operator's command, while the fleet works.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::Result;
use crate::library::URL;

/// A page that is served until it is dropped.
pub(super) struct Page {
    child: Child,
    address: String,
    /// The operator's command.
    pub(super) command: PathBuf,
}

/// The command is built into the folder that this example is in a folder of.
fn command() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|examples| examples.parent());
    let command = folder.map(|folder| folder.join("lockapi"));
    command.filter(|command| command.is_file()).ok_or_else(|| {
        "the command that serves the page is not built; `make demo ARGS=--web` builds it, and so does \
         `cargo build -p lockapi-console`, with `--release` as this was built"
            .into()
    })
}

impl Page {
    pub(super) fn serve(url: &str) -> Result<Self> {
        let command = command()?;
        let mut child = Command::new(&command)
            .args(["web", "--listen", "127.0.0.1:0", "--allow-actions"])
            .env(URL, url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut address = String::new();
        if let Some(output) = child.stdout.take() {
            // It prints its address, and nothing else.
            BufReader::new(output).read_line(&mut address)?;
        }
        let page = Self {
            child,
            address: address.trim().to_owned(),
            command,
        };
        if page.address.is_empty() {
            return Err("the page could not be served; the command has said why".into());
        }
        Ok(page)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
