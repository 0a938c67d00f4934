//! The server that all processes share.

use super::ClusterError;
use super::instance::{self, Linger};
use super::server::Server;
use super::tools::Tools;

/// Long enough for the next process of a run to come.
const LINGER: Linger = Linger::Seconds(5);

/// Joins the shared server; the first process to ask starts it, while the others wait.
pub(super) fn find_or_start() -> Result<Server, ClusterError> {
    let tools = Tools::find()?;
    // Another checkout may have other migrations.
    let checkout = lockapi::advisory_key("", env!("CARGO_MANIFEST_DIR")) & 0xffff;
    let server = lockapi::advisory_key("", &tools.installation().identity()?) & 0xffff;
    let kind = format!("s{server:04x}-{checkout:04x}");
    let tools = match find(tools, &kind)? {
        Ok(server) => return Ok(server),
        Err(tools) => tools,
    };
    let _lock = instance::lock()?;
    // Another process may have started it while this one waited.
    let tools = match find(tools, &kind)? {
        Ok(server) => return Ok(server),
        Err(tools) => tools,
    };
    let mut server = Server::create(tools, &kind, LINGER, None, &[])?;
    server.keep_pristine()?;
    server.launch()?;
    server.publish()
}

/// Joins a living server; gives the programs back if there is none.
fn find(mut tools: Tools, kind: &str) -> Result<Result<Server, Tools>, ClusterError> {
    for dir in instance::directories(kind)? {
        match Server::join(tools, &dir) {
            Ok(server) => return Ok(Ok(server)),
            Err(unused) => tools = unused,
        }
    }
    Ok(Err(tools))
}
