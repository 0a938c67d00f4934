//! A transaction-pooling proxy in front of the server.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{NoTls, SimpleQueryMessage};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::Result;
use crate::guard::Guard;
use crate::server::USER;

const PATIENCE: Duration = Duration::from_secs(10);
const ADMIN: &str = "pooler_admin";

/// A `pgbouncer`; it ends with this value, or when this process has ended.
#[derive(Debug)]
pub(crate) struct Pooler {
    program: PathBuf,
    process: Child,
    port: u16,
    _guard: Guard,
    dir: TempDir,
}

impl Pooler {
    pub(crate) fn start(server: u16) -> Result<Self> {
        let program = program()?;
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let users = dir.path().join("users.txt");
        fs::write(&users, format!("\"{USER}\" \"\"\n\"{ADMIN}\" \"\"\n"))?;
        fs::write(
            dir.path().join("pooler.ini"),
            format!(
                "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = trust\nauth_file = {}\nadmin_users = {ADMIN}\npool_mode = transaction\n\
                 default_pool_size = 12\nmax_client_conn = 200\nserver_round_robin = 1\n\
                 server_login_retry = 1\nignore_startup_parameters = extra_float_digits\n",
                users.display()
            ),
        )?;
        let guard = Guard::new(
            "kill -KILL \"$(cat \"$1/process\")\"; rm -rf \"$1\"",
            &[dir.path()],
        )?;
        let process = launch(&program, dir.path())?;
        let mut pooler = Self {
            program,
            process,
            port,
            _guard: guard,
            dir,
        };
        pooler.wait()?;
        Ok(pooler)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command of the pooler's own, such as `PAUSE`.
    pub(crate) fn command(&self, command: &str) -> Result<()> {
        self.rows(command).map(drop)
    }

    pub(crate) fn rows(&self, command: &str) -> Result<Vec<SimpleQueryMessage>> {
        let url = format!(
            "postgres://{ADMIN}@127.0.0.1:{}/pgbouncer?connect_timeout=5",
            self.port
        );
        let mut client = postgres::Client::connect(&url, NoTls)?;
        Ok(client.simple_query(command)?)
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    pub(crate) fn launch(&mut self) -> Result<()> {
        self.process = launch(&self.program, self.dir.path())?;
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if let Some(status) = self.process.try_wait()? {
                return Err(format!("pgbouncer ended at once: {status}").into());
            }
            if start.elapsed() > PATIENCE {
                return Err("pgbouncer does not listen".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn launch(program: &Path, dir: &Path) -> Result<Child> {
    let mut command = Command::new(program);
    command.arg("-q").arg(dir.join("pooler.ini"));
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if geteuid().is_root() {
        let (uid, gid) = server_user()?;
        command.uid(uid).gid(gid);
    }
    let process = command.spawn()?;
    fs::write(dir.join("process"), process.id().to_string())?;
    Ok(process)
}

fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")])
        .map(|dir| dir.join("pgbouncer"))
        .find(|program| Path::is_file(program))
        .ok_or_else(|| {
            "pgbouncer is not installed; on Debian and Ubuntu: apt-get install pgbouncer".into()
        })
}

/// The user to run as instead of root, which it refuses.
fn server_user() -> Result<(u32, u32)> {
    let id = |option: &str| -> Result<u32> {
        let output = Command::new("id").args([option, "postgres"]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    Ok((id("-u")?, id("-g")?))
}
