//! The program of the tests, with another text in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The program that runs the tests of a target, which is built first.
pub(crate) fn build(test: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        // As `make test` builds it, so that nothing is built twice.
        .args(["test", "--workspace", "--no-run", "--features"])
        .arg("lockapi/tracing,lockapi/metrics,lockapi/opentelemetry")
        .args(["--message-format", "json", "--test", test])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the tests of {test} cannot be built").into());
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = lines.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let of_test = message["target"]["name"] == test && message["target"]["kind"][0] == "test";
        message["executable"]
            .as_str()
            .filter(|_| of_test)
            .map(PathBuf::from)
    });
    executable.ok_or_else(|| format!("there is no program of the tests of {test}").into())
}

/// Where a text is: the texts of statements are in a program as they are in their files.
pub(crate) fn places(program: &[u8], text: &[u8]) -> Vec<usize> {
    let Some((last, rest)) = text.split_last() else {
        return Vec::new();
    };
    // How far the text can be moved when this byte is beneath its last one.
    let mut moves = [text.len(); 256];
    for (at, byte) in rest.iter().enumerate() {
        moves[usize::from(*byte)] = rest.len() - at;
    }
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(found) = program.get(at..at + text.len()) {
        let beneath = found[rest.len()];
        if beneath == *last && found == text {
            places.push(at);
        }
        at += moves[usize::from(beneath)];
    }
    places
}

/// Writes a program whose text at these places is another one of the same length.
pub(crate) fn write(path: &Path, program: &[u8], places: &[usize], text: &[u8]) -> Result<()> {
    let mut program = program.to_vec();
    for at in places {
        program[*at..*at + text.len()].copy_from_slice(text);
    }
    // A file that somebody executes is not written to.
    if path.exists() {
        fs::remove_file(path)?;
    }
    fs::write(path, program)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    Ok(())
}
