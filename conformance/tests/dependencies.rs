//! What the backends bring into a program.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
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
    let tree = tree("lockapi-diesel");
    assert!(tree.contains_key("diesel"));
    // Channels only.
    assert_eq!(tree["tokio"], "sync");
    for other in ["sqlx", "tokio-postgres", "postgres", "async-std", "smol"] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

/// It starts on a machine that has no client library and no OpenSSL.
#[test]
fn the_operators_command_brings_no_library_of_the_system() {
    let tree = tree("lockapi-console");
    assert!(tree.contains_key("sqlx"));
    for other in [
        "pq-sys",
        "openssl",
        "native-tls",
        "diesel",
        "ncurses",
        "libsqlite3",
    ] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

#[test]
fn sync_brings_the_runtime_that_postgres_brings() {
    let tree = tree("lockapi-postgres");
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
    let tree = tree("lockapi-sqlx");
    assert!(tree.contains_key("sqlx-postgres"));
    for other in ["diesel", "pq-sys", "tokio-postgres", "r2d2"] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

#[test]
fn tokio_postgres_brings_no_other_library_and_no_pool() {
    let tree = tree("lockapi-tokio-postgres");
    assert!(tree.contains_key("tokio-postgres"));
    for other in [
        "sqlx", "diesel", "pq-sys", "r2d2", "bb8", "deadpool", "rustls", "openssl",
    ] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

#[test]
fn diesel_async_brings_no_library_of_the_system_and_no_pool() {
    let tree = tree("lockapi-diesel-async");
    assert!(tree.contains_key("diesel-async"));
    for other in [
        "sqlx", "pq-sys", "r2d2", "bb8", "deadpool", "rustls", "openssl",
    ] {
        assert!(!has_any(&tree, other), "{other}");
    }
}

#[test]
fn the_console_needs_no_library_of_the_system() {
    let tree = tree("lockapi-console");
    assert!(tree.contains_key("rustls"));
    for other in ["pq-sys", "openssl", "native-tls", "aws-lc", "diesel"] {
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

/// Calls of `fastrand` that may decide nothing but how long, or from where on, and the one that a simulation
/// begins with.
const FOR_PAUSES: [&str; 5] = ["f64()", "usize(", "u64(POLL_MILLIS)", "Rng", "seed("];

fn sources(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(&path).expect("a text");
            found.push((path, text));
        }
    }
}

#[test]
fn numbers_that_decide_come_from_the_operating_system() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for folder in [
        "lockapi",
        "backend-sqlx",
        "backend-diesel",
        "backend-diesel-async",
        "backend-diesel-types",
        "backend-postgres-types",
        "backend-sync",
        "backend-tokio-postgres",
    ] {
        sources(&workspace.join(folder).join("src"), &mut found);
    }
    assert!(found.len() > 100, "the sources are not there");
    for (path, text) in found {
        for (nth, line) in text.lines().enumerate() {
            let calls = line.split("fastrand::").skip(1);
            let deciding = calls
                .filter(|call| !FOR_PAUSES.iter().any(|pause| call.starts_with(pause)))
                .count();
            let place = format!("{}:{}", path.display(), nth + 1);
            assert!(deciding == 0, "{place}: {line}");
        }
    }
}
