//! The processes that a command has become.

use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, wait};

/// Between two looks at what is left of something that is being killed.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// The descendants of this process: children of a command that has ended, what has left its process group, and daemons
/// too, because this process adopts them. Only Linux tells; elsewhere a command is its process group.
///
/// Those that nobody has waited for yet are among them: a process whose first thread has ended looks the same.
fn descendants() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut processes = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        if let Some((pid, parent)) = pid.and_then(|pid: i32| Some((pid, parent(pid)?))) {
            processes.push((pid, parent));
        }
    }
    let mut family = vec![getpid().as_raw_pid()];
    let mut at = 0;
    while let Some(&of) = family.get(at) {
        let children = processes.iter().filter(|(_, parent)| *parent == of);
        family.extend(children.map(|(pid, _)| *pid));
        at += 1;
    }
    let found = family.into_iter().skip(1);
    found.filter_map(Pid::from_raw).collect()
}

fn parent(pid: i32) -> Option<i32> {
    parent_in(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parent_in(stat: &[u8]) -> Option<i32> {
    // The name, in brackets, may hold any bytes; state and parent follow.
    let rest = stat.rsplit(|byte| *byte == b')').next()?;
    let rest = std::str::from_utf8(rest).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Sends a signal to all processes of a command; answers one that must not be signalled, because it runs as another
/// user.
///
/// `group` is its process group while its first process has not been waited for: later the number may be that of
/// others.
pub(super) fn signal(group: Option<Pid>, signal: Signal) -> Option<Pid> {
    let mut refused = None;
    if let Some(group) = group
        && kill_process_group(group, signal) == Err(Errno::PERM)
    {
        refused = Some(group);
    }
    for pid in descendants() {
        // What has ended meanwhile needs no signal.
        if kill_process(pid, signal) == Err(Errno::PERM) {
            refused = Some(pid);
        }
    }
    refused
}

/// Kills all descendants of this process and waits until nothing is left of them, or for `patience`; answers whether
/// nothing is left.
pub(super) fn end(patience: Duration) -> bool {
    let begun = std::time::Instant::now();
    loop {
        signal(None, Signal::KILL);
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return true,
            }
        }
        if begun.elapsed() > patience {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod fuzz {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use lockapi_fuzz::{bytes_like, check};
    use proptest::prelude::any;
    use proptest::prop_assert_eq;

    use super::*;

    #[test]
    fn names_of_processes_do_not_hide_their_parents() {
        let names = [
            &b"sleep"[..],
            b"a) S 7 (b",
            b")",
            b"",
            b"\xff\xfe",
            b"a b\n1 1 1",
        ]
        .map(<[u8]>::to_vec);
        let known = names.clone().map(|name| (1, name, 2));
        check(
            known,
            &(any::<i32>(), bytes_like(names.to_vec()), any::<i32>()),
            |(pid, name, parent)| {
                let begin = format!("{pid} (");
                let end = format!(") S {parent} 7 7 0 -1\n");
                let stat = [begin.as_bytes(), &name, end.as_bytes()].concat();
                prop_assert_eq!(parent_in(&stat), Some(parent));
                Ok(())
            },
        );
    }

    /// A process has the name of its program, which may be any bytes.
    #[test]
    #[cfg(target_os = "linux")]
    fn processes_of_any_name_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join(OsStr::from_bytes(b"\xff)"));
        symlink("/bin/sleep", &program).expect("a link");
        let mut child = Command::new(&program).arg("60").spawn().expect("a process");
        let pid = i32::try_from(child.id()).expect("a number");
        let found = parent(pid);
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert_eq!(found, Some(getpid().as_raw_pid()));
    }
}
