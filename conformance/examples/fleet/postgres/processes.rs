//! Workers as processes.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{PgPool, Row};

use crate::Result;
use crate::args::Safety;
use crate::conduct::{Fleet, Member, State, node_name};
use crate::library::{Library, URL, application};

pub(super) struct Processes {
    url: String,
    pool: PgPool,
    /// Workers use them by turns.
    libraries: &'static [Library],
    safety: Safety,
    workers: Mutex<Vec<Process>>,
}

struct Process {
    node: String,
    library: Library,
    child: Child,
    state: State,
}

impl Processes {
    pub(super) fn new(
        url: &str,
        pool: PgPool,
        libraries: &'static [Library],
        safety: Safety,
    ) -> Self {
        Self {
            url: url.to_owned(),
            pool,
            libraries,
            safety,
            workers: Mutex::default(),
        }
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Process>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, node: &str, signal: Signal, state: State) -> Result<()> {
        let mut workers = self.workers();
        let process = workers.iter_mut().find(|process| process.node == node);
        let process = process.ok_or("no such worker")?;
        if process.child.try_wait()?.is_some() {
            // Somebody else was faster, and its number may be another's by now.
            return Ok(());
        }
        kill_process(Pid::from_child(&process.child), signal)?;
        process.state = state;
        Ok(())
    }
}

#[async_trait]
impl Fleet for Processes {
    fn start(&self, successor_of: Option<&str>) -> Result<String> {
        let mut workers = self.workers();
        let predecessor = workers
            .iter()
            .find(|process| successor_of == Some(&process.node));
        let library = match predecessor {
            Some(process) => process.library,
            None => self.libraries[workers.len() % self.libraries.len()],
        };
        let node = node_name(library.word(), workers.len() + 1);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", &node, "--backend", library.word()]);
        command.args(self.safety.option()).env(URL, &self.url);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // The interrupt key is meant for this process, which sees to the others.
            .process_group(0)
            .spawn()?;
        workers.push(Process {
            node: node.clone(),
            library,
            child,
            state: State::Running,
        });
        Ok(node)
    }

    fn kill(&self, node: &str) -> Result<()> {
        self.signal(node, Signal::KILL, State::Killed)
    }

    fn stop(&self, node: &str) -> Result<()> {
        self.signal(node, Signal::STOP, State::Stopped)
    }

    fn resume(&self, node: &str) -> Result<()> {
        self.signal(node, Signal::CONT, State::Running)
    }

    async fn end_sessions(&self, node: &str) -> Result<Vec<String>> {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name IN ($1, $1 || ' lockapi')";
        let row = sqlx::query(sql)
            .bind(application(node))
            .fetch_one(&self.pool)
            .await?;
        let _ended: i64 = row.try_get(0)?;
        Ok(vec![node.to_owned()])
    }

    fn members(&self) -> Result<Vec<Member>> {
        let mut members = Vec::new();
        for process in self.workers().iter_mut() {
            if let Some(status) = process.child.try_wait()?
                && process.state != State::Killed
            {
                process.state = if status.success() {
                    State::Done
                } else if status.signal().is_some() {
                    State::Fallen
                } else {
                    State::Crashed
                };
            }
            members.push(Member {
                node: process.node.clone(),
                state: process.state,
            });
        }
        Ok(members)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let mut workers = self.workers();
        for process in workers.iter_mut() {
            // One that has ended is not there to be killed.
            drop(process.child.kill());
        }
        for process in workers.iter_mut() {
            drop(process.child.wait());
        }
    }
}
