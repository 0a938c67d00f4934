//! A proxy that pools sessions, in front of a server.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// Why it did not start.
type Problem = Box<dyn std::error::Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(10);

const CONFIG: &str = "proxy.ini";

/// A running `pgbouncer`; it ends with this value.
#[derive(Debug)]
pub struct Proxy {
    process: Child,
    port: u16,
    dir: PathBuf,
    /// The section of its file that names the server, and what it is to do, but for the mode.
    settings: String,
}

impl Proxy {
    /// Starts one in front of the server on a port, for one user, with so many sessions, in a mode of `pool_mode`.
    ///
    /// # Errors
    /// If `pgbouncer` is not installed, or does not start.
    pub fn start(server: u16, user: &str, sessions: usize, mode: &str) -> Result<Self, Problem> {
        let program = program()?;
        let dir = std::env::temp_dir().join(format!("lockapi-proxy-{:016x}", fastrand::u64(..)));
        fs::create_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let users = dir.join("users.txt");
        fs::write(&users, format!("\"{user}\" \"\"\n"))?;
        // All sessions are opened, and take turns: what is left in one is missed in the next.
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\n\
             default_pool_size = {sessions}\nmin_pool_size = {sessions}\nmax_client_conn = 100\n\
             server_round_robin = 1\nignore_startup_parameters = extra_float_digits\n",
            users.display()
        );
        write_config(&dir, &settings, mode)?;
        let mut command = Command::new(program);
        command.arg("-q").arg(dir.join(CONFIG)).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if geteuid().is_root() {
            let (uid, gid) = server_user()?;
            command.uid(uid).gid(gid);
        }
        let process = command.spawn()?;
        let mut proxy = Self {
            process,
            port,
            dir,
            settings,
        };
        proxy.wait()?;
        Ok(proxy)
    }

    /// Where it listens, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes the mode of the running proxy.
    ///
    /// # Errors
    /// If its file cannot be written, or it has ended.
    pub fn set_mode(&self, mode: &str) -> Result<(), Problem> {
        write_config(&self.dir, &self.settings, mode)?;
        kill_process(Pid::from_child(&self.process), Signal::HUP)?;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Problem> {
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

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself, and what is left is in the directory for temporary files.
        let _killed = self.process.kill();
        let _status = self.process.wait();
        let _removed = fs::remove_dir_all(&self.dir);
    }
}

/// By another name first: the proxy may be reading it.
fn write_config(dir: &Path, settings: &str, mode: &str) -> Result<(), Problem> {
    let next = dir.join("next.ini");
    fs::write(&next, format!("{settings}pool_mode = {mode}\n"))?;
    fs::rename(next, dir.join(CONFIG))?;
    Ok(())
}

fn program() -> Result<PathBuf, Problem> {
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
fn server_user() -> Result<(u32, u32), Problem> {
    let id = |option: &str| -> Result<u32, Problem> {
        let output = Command::new("id").args([option, "postgres"]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    Ok((id("-u")?, id("-g")?))
}
