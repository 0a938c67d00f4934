//! What the backends bring into a program.

use std::collections::BTreeMap;
use std::env;
use std::process::Command;

/// The crates that a package needs to run, with their features.
fn tree(package: &str) -> BTreeMap<String, String> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}|{f}", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).expect("text");
    lines
        .lines()
        .filter_map(|line| {
            let (package, features) = line.split_once('|')?;
            let name = package.split(' ').next()?;
            let features = features.trim_end_matches(" (*)");
            Some((name.to_owned(), features.to_owned()))
        })
        .collect()
}

fn has_any(tree: &BTreeMap<String, String>, start: &str) -> bool {
    tree.keys().any(|name| name.starts_with(start))
}

#[test]
fn diesel_brings_no_runtime_and_no_other_library() {
    let tree = tree("backend-diesel");
    assert!(tree.contains_key("diesel"));
    // Channels only.
    assert_eq!(tree["tokio"], "sync");
    for other in ["sqlx", "tokio-postgres", "postgres", "async-std", "smol"] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

#[test]
fn sync_brings_the_runtime_that_postgres_brings() {
    let tree = tree("backend-sync");
    let postgres = self::tree("postgres");
    assert!(tree.contains_key("r2d2"));
    let features = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let brought = features(&postgres["tokio"]);
    let more = features(&tree["tokio"]);
    assert!(
        more.iter()
            .all(|feature| brought.contains(feature) || feature == "sync")
    );
    for other in ["sqlx", "diesel", "pq-sys", "async-std", "smol"] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

#[test]
fn sqlx_brings_no_other_library() {
    let tree = tree("backend-sqlx");
    assert!(tree.contains_key("sqlx-postgres"));
    for other in ["diesel", "pq-sys", "tokio-postgres", "r2d2"] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

#[test]
fn the_traits_bring_no_database_library() {
    let tree = tree("lockapi");
    assert_eq!(tree["tokio"], "sync");
    for other in [
        "sqlx",
        "diesel",
        "pq-sys",
        "postgres",
        "tokio-postgres",
        "r2d2",
    ] {
        assert!(!has_any(&tree, other), "{other}");
    }
}
