//! Running SQL with `psql`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::ClusterError;
use super::tools::failure;

/// Runs SQL text with a prepared `psql` and returns what it printed, without the last line end.
///
/// The text goes through the standard input: unlike with `-c`, every statement is then a
/// transaction of its own, and `create database` works.
pub(super) fn run(mut command: Command, url: &str, sql: &str) -> Result<String, ClusterError> {
    command
        .args([
            "-X",
            "-w",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            url,
        ])
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let action = || format!("running {}", Path::new(command.get_program()).display());
    let running = ClusterError::io(action());
    let waiting = ClusterError::io(action());
    let mut child = command.spawn().map_err(running)?;
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        // While this writes, the output has to be read, or both sides could wait for each other.
        scope.spawn(|| {
            if let Some(mut stdin) = stdin {
                // Fails when psql stops at an error, which it reports itself.
                let _ = stdin.write_all(sql.as_bytes());
            }
        });
        child.wait_with_output()
    })
    .map_err(waiting)?;
    if !output.status.success() {
        return Err(failure(&command, &output));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}
