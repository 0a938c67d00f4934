//! What torture is asked for is done or refused.

use std::process::Command;

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, why) in [
        ("--seconds 19", "--seconds 19; allowed are 20 to 86400"),
        ("--seconds soon", "--seconds soon: "),
        ("--hours -1", "--hours -1: "),
        ("--programs 61", "--programs 61; allowed are 1 to 60"),
        ("--only nothing", "nothing is no fault; allowed are "),
        ("--without kill,", " is no fault; allowed are "),
        (
            "--only kill --without kill",
            "--without leaves out all faults",
        ),
        ("--control nice", "--control nice; allowed are unchecked, "),
        (
            "--control quiet --only kill",
            "--control quiet has no faults",
        ),
        (
            "--without kill --control quiet",
            "--control quiet has no faults",
        ),
        ("--nothing", "'--nothing'"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_torture"));
        let output = command.args(arguments.split_whitespace()).output();
        let output = output.expect("the program runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {told}");
        assert!(told.contains(why), "{arguments}: {told}");
    }
}
