//! What is undone when this process has ended, however it ended.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::Result;

/// A shell that runs a script if this process ends without dropping this value.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn new<A: AsRef<OsStr>>(script: &str, arguments: &[A]) -> Result<Self> {
        // The pipe ends with this process. A line says that there is nothing left to do.
        let script = format!("trap '' HUP INT QUIT TERM; read -r line && exit; {script}");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, "torture-guard"]);
        command.args(arguments).current_dir("/").process_group(0);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(stdin) = &mut self.0.stdin {
            // One that is gone does nothing either.
            drop(writeln!(stdin, "done"));
        }
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_acts_where_it_is_not_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let guard = || Guard::new("touch \"$1\"", &[dir.path().join("acted")]).unwrap();
        drop(guard());
        assert!(!dir.path().join("acted").exists());
        let mut forgotten = guard();
        drop(forgotten.0.stdin.take());
        assert!(forgotten.0.wait().unwrap().success());
        assert!(dir.path().join("acted").exists());
    }
}
