//! What the simulation is asked for is done or refused, and seeds give the same however they are run.

use std::process::{Command, Output};

fn simulate(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
    let output = command.args(arguments.split_whitespace()).output();
    output.expect("the program runs")
}

/// What was printed, where it was to succeed.
fn printed(arguments: &str) -> String {
    let output = simulate(arguments);
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, why) in [
        ("--seeds 0", "--seeds 0; allowed is 1 and more"),
        ("--threads 0", "--threads 0; allowed is 1 and more"),
        ("--seeds many", "--seeds many: "),
        (
            "--first 18446744073709551614 --seeds 5",
            "allowed are seeds up to 9223372036854775807",
        ),
        ("--seed -1", "--seed -1: "),
        ("--every 0", "--every 0; allowed is 1 and more"),
        (
            "--every 9223372036854775807 --seeds 2",
            "allowed are seeds up to 9223372036854775807",
        ),
        ("--seed 1 --every 2", "--every does not go with --seed"),
        ("--tasks 1", "--tasks goes with --seed"),
        ("--seed 1 --seeds 2", "--seeds does not go with --seed"),
        ("--seed 1 --threads 2", "--threads does not go with --seed"),
        (
            "--seed 1 --programs 0",
            "--programs 0; allowed is 1 and more",
        ),
        (
            "--seed 1 --without lock,nobody",
            "--without lock; allowed are the faults delay, ",
        ),
        ("--nobody", "'--nobody'"),
        ("nobody", "\"nobody\""),
    ] {
        let output = simulate(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {told}");
        assert!(told.contains(why), "{arguments}: {told}");
        assert!(output.stdout.is_empty(), "{arguments}: it begins");
    }
}

#[test]
fn options_have_no_order() {
    let plan = printed("--seed 3 --small --time 300 --without copy,mutex");
    assert_eq!(
        plan,
        printed("--without copy,mutex --time 300 --small --seed 3")
    );
    assert_ne!(plan, printed("--seed 3 --small --time 300"));
}

#[test]
fn seeds_can_be_some_apart() {
    // Answers that were checked, statements and steps.
    let counts = |arguments: &str| {
        let printed = printed(&format!("--small {arguments}"));
        let (_, counted) = printed.split_once(": ").expect("what was counted");
        let mut numbers = counted.split(' ').filter_map(|word| word.parse().ok());
        [(); 3].map(|()| numbers.next().expect("a number"))
    };
    let [one, other]: [[u64; 3]; 2] =
        [3, 64].map(|seed| counts(&format!("--seeds 1 --first {seed}")));
    let both = counts("--seeds 2 --first 3 --every 61");
    assert_eq!(both, [0, 1, 2].map(|at| one[at] + other[at]));
}

#[test]
fn threads_change_nothing() {
    let counted = |threads| {
        let printed = printed(&format!("--small --seeds 3 --threads {threads}"));
        let (figures, rest) = printed.split_once('\n').expect("several lines");
        let figures = figures.split(" of virtual time").next();
        (figures.expect("figures").to_owned(), rest.to_owned())
    };
    assert_eq!(counted(1), counted(3));
}
