//! Programs that compute at the lowest priority: no core sleeps, so none has to be woken.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;

/// The argument of a program that does nothing else.
pub(crate) const SPIN: &str = "--spinner";

/// The programs, which end with this one.
pub(crate) struct Spinners(Vec<Child>);

/// Starts one for each core.
pub(crate) fn start() -> Spinners {
    let program = std::env::current_exe().expect("this program");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let start = |_| {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(&program).arg(SPIN);
        command.stdin(Stdio::piped()).spawn().expect("nice")
    };
    Spinners((0..cores).map(start).collect())
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for spinner in &mut self.0 {
            spinner.kill().expect("a spinner");
            spinner.wait().expect("a spinner");
        }
    }
}

/// Computes until the program that started this one has ended.
pub(crate) fn spin() -> ! {
    thread::spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    // Nothing is written: it ends when the other side does.
    let mut nothing = Vec::new();
    let read = std::io::stdin().read_to_end(&mut nothing);
    std::process::exit(i32::from(read.is_err()));
}
