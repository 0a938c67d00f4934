//! Finding the programs of an installed `PostgreSQL` server.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ClusterError;

const OLDEST_MAJOR: u64 = 13;

/// What has to be in the directory of a server.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// What may be in another one: some packages hold a server alone.
const CLIENTS: [&str; 2] = ["pg_isready", "psql"];

/// Where packages install servers, as (parent, start of the name): each stands for the glob
/// `parent/start*/bin`.
const USUAL_PLACES: [(&str, &str); 6] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
    ("/Library/PostgreSQL", ""),
    ("/Applications/Postgres.app/Contents/Versions", ""),
];

/// The programs of one installed server, and of a client for it.
#[derive(Debug)]
pub(super) struct Installation {
    pub(super) bin_dir: PathBuf,
    /// The directory of `psql`.
    pub(super) client_dir: PathBuf,
}

impl Installation {
    /// Finds the server to use.
    pub(super) fn find() -> Result<Self, ClusterError> {
        let path = env::var_os("PATH");
        let bin_dir = find_bin_dir(
            env::var_os("LOCKAPI_PG_BIN").as_deref(),
            path.as_deref(),
            Path::new("/"),
        )?;
        let client_dir = find_client_dir(&bin_dir, path.as_deref(), Path::new("/"))
            .ok_or_else(|| ClusterError::NoClient(bin_dir.clone()))?;
        Ok(Self {
            bin_dir,
            client_dir,
        })
    }

    /// What tells this server's programs from those of others, and from another version in their place.
    pub(super) fn identity(&self) -> Result<String, ClusterError> {
        let program = self.bin_dir.join("postgres");
        let reading = || ClusterError::io(format!("reading {}", program.display()));
        let meta = fs::metadata(&program).map_err(reading())?;
        let changed = meta.modified().map_err(reading())?;
        Ok(format!("{} {} {changed:?}", program.display(), meta.len()))
    }

    /// Asks the server for its version, which has to be one that the suite knows.
    pub(super) fn check_version(&self) -> Result<(), ClusterError> {
        let program = self.bin_dir.join("postgres");
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(ClusterError::io(format!("running {}", program.display())))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text
            .split_whitespace()
            .nth(2)
            .unwrap_or_default()
            .to_owned();
        // A development version reads like `19devel`.
        if numbers(&version).first().copied().unwrap_or(0) < OLDEST_MAJOR {
            let bin_dir = self.bin_dir.clone();
            return Err(ClusterError::TooOld { bin_dir, version });
        }
        Ok(())
    }
}

/// Looks in the named directory, then in `PATH`, then in the usual places below `root`.
fn find_bin_dir(
    named: Option<&OsStr>,
    path: Option<&OsStr>,
    root: &Path,
) -> Result<PathBuf, ClusterError> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return server_of(&named).ok_or(ClusterError::NoServerIn(named));
    }
    absolute(path)
        .find_map(|dir| server_of(&dir))
        .or_else(|| in_usual_places(root, server_of))
        .ok_or(ClusterError::NoServer)
}

/// Looks beside the server, then in the usual places below `root`, then in `PATH`, where Debian has
/// a wrapper that takes longer to start.
fn find_client_dir(bin_dir: &Path, path: Option<&OsStr>, root: &Path) -> Option<PathBuf> {
    let client_of = |dir: &Path| holds(dir, &CLIENTS).then(|| dir.to_owned());
    client_of(bin_dir)
        .or_else(|| in_usual_places(root, client_of))
        .or_else(|| absolute(path).find_map(|dir| client_of(&dir)))
}

fn absolute(path: Option<&OsStr>) -> impl Iterator<Item = PathBuf> {
    path.into_iter()
        .flat_map(env::split_paths)
        .filter(|dir| dir.is_absolute())
}

fn in_usual_places(root: &Path, wanted: impl Fn(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
    USUAL_PLACES.iter().find_map(|(parent, start)| {
        newest_below(&root.join(parent.trim_start_matches('/')), start, &wanted)
    })
}

/// The highest version among what is wanted in `parent/start*/bin`.
fn newest_below(
    parent: &Path,
    start: &str,
    wanted: impl Fn(&Path) -> Option<PathBuf>,
) -> Option<PathBuf> {
    fs::read_dir(parent)
        .ok()?
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = numbers(name.to_str()?.strip_prefix(start)?);
            Some((version, wanted(&entry.path().join("bin"))?))
        })
        .max()
        .map(|(_, bin_dir)| bin_dir)
}

/// The directory with all the programs of the server in `dir`.
fn server_of(dir: &Path) -> Option<PathBuf> {
    if holds(dir, &PROGRAMS) {
        return Some(dir.to_owned());
    }
    // Directories of `PATH` often hold links to some of the programs.
    let program = fs::canonicalize(dir.join("postgres")).ok()?;
    let linked = program.parent()?;
    holds(linked, &PROGRAMS).then(|| linked.to_owned())
}

fn holds(dir: &Path, programs: &[&str]) -> bool {
    programs.iter().all(|program| {
        fs::metadata(dir.join(program))
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// The numbers in a version, in their order: they compare as versions do, where the texts do not
/// (`9.6` is older than `15`). A name without a number compares lowest.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn fake_server(dir: &Path) -> PathBuf {
        fake(dir, &PROGRAMS)
    }

    fn fake(dir: &Path, programs: &[&str]) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        for program in programs {
            let file = dir.join(program);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir.to_owned()
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("15") > numbers("9.6"));
        assert!(numbers("9.10") > numbers("9.6"));
        assert!(numbers("@17") > numbers("@16"));
        assert!(numbers("15.13") > numbers("15"));
        assert!(numbers("@13") > numbers(""));
        assert_eq!(numbers("19devel"), [19]);
    }

    #[test]
    fn named_directory_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let named = fake_server(&root.path().join("named"));
        let in_path = fake_server(&root.path().join("path"));
        let found = find_bin_dir(
            Some(named.as_os_str()),
            Some(in_path.as_os_str()),
            root.path(),
        );
        assert_eq!(found.unwrap(), named);
    }

    #[test]
    fn named_directory_without_server_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let in_path = fake_server(&root.path().join("path"));
        let error = find_bin_dir(
            Some(root.path().as_os_str()),
            Some(in_path.as_os_str()),
            root.path(),
        )
        .unwrap_err();
        assert!(matches!(error, ClusterError::NoServerIn(_)));
        assert!(error.to_string().contains("LOCKAPI_PG_BIN"));
    }

    #[test]
    fn path_comes_before_the_usual_places() {
        let root = tempfile::tempdir().unwrap();
        fake_server(&root.path().join("usr/lib/postgresql/17/bin"));
        let without = root.path().join("without");
        fs::create_dir(&without).unwrap();
        let with = fake_server(&root.path().join("with"));
        let path = env::join_paths([&without, &with]).unwrap();
        assert_eq!(find_bin_dir(None, Some(&path), root.path()).unwrap(), with);
    }

    #[test]
    fn half_a_server_in_path_is_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let half = fake_server(&root.path().join("half"));
        fs::set_permissions(half.join("postgres"), fs::Permissions::from_mode(0o644)).unwrap();
        let usual = fake_server(&root.path().join("usr/pgsql-16/bin"));
        let found = find_bin_dir(None, Some(half.as_os_str()), root.path());
        assert_eq!(found.unwrap(), usual);
    }

    #[test]
    fn links_to_some_programs_lead_to_all() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().canonicalize().unwrap();
        let real = fake_server(&base.join("real"));
        let links = base.join("links");
        fs::create_dir(&links).unwrap();
        for program in ["initdb", "postgres"] {
            std::os::unix::fs::symlink(real.join(program), links.join(program)).unwrap();
        }
        let found = find_bin_dir(None, Some(links.as_os_str()), root.path());
        assert_eq!(found.unwrap(), real);
        assert_eq!(
            find_bin_dir(Some(links.as_os_str()), None, root.path()).unwrap(),
            real
        );
    }

    #[test]
    fn client_may_be_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let server = fake_server(&root.path().join("server"));
        let client = || find_client_dir(&server, None, root.path());
        assert_eq!(client(), None);
        let path = fake(&root.path().join("path"), &CLIENTS);
        let in_path = || find_client_dir(&server, Some(path.as_os_str()), root.path());
        assert_eq!(in_path(), Some(path.clone()));
        let usual = root.path().join("usr/lib/postgresql/15/bin");
        fake(&usual, &CLIENTS);
        assert_eq!(in_path(), Some(usual));
        fake(&server, &CLIENTS);
        assert_eq!(in_path(), Some(server.clone()));
    }

    #[test]
    fn newest_of_a_place_wins() {
        let root = tempfile::tempdir().unwrap();
        for version in ["9.6", "15", "13"] {
            fake_server(
                &root
                    .path()
                    .join("usr/lib/postgresql")
                    .join(version)
                    .join("bin"),
            );
        }
        fake_server(&root.path().join("usr/pgsql-17/bin"));
        // The newest directory holds only client programs.
        fs::create_dir_all(root.path().join("usr/lib/postgresql/18/bin")).unwrap();
        assert_eq!(
            find_bin_dir(None, None, root.path()).unwrap(),
            root.path().join("usr/lib/postgresql/15/bin")
        );
    }

    #[test]
    fn versioned_names_are_found() {
        let root = tempfile::tempdir().unwrap();
        fake_server(&root.path().join("opt/homebrew/opt/postgresql/bin"));
        let newest = fake_server(&root.path().join("opt/homebrew/opt/postgresql@17/bin"));
        fake_server(&root.path().join("opt/homebrew/opt/postgresql@9.6/bin"));
        assert_eq!(find_bin_dir(None, None, root.path()).unwrap(), newest);
    }

    #[test]
    fn no_server_says_how_to_get_one() {
        let root = tempfile::tempdir().unwrap();
        let text = find_bin_dir(None, None, root.path())
            .unwrap_err()
            .to_string();
        for part in [
            "13 or newer",
            "apt-get install postgresql",
            "brew install postgresql",
            "DATABASE_URL",
            "LOCKAPI_PG_BIN",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
