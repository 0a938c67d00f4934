//! The processes on the libraries, and what they tell.

use std::fs::File;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;

use crate::Result;
use crate::args::Settings;
use crate::cluster::Cluster;
use crate::history::History;
use crate::programs::Library;
use crate::record::{Order, Record};

/// The environment variable with the URL, which is seen by nobody else.
pub(crate) const URL: &str = "FAILOVER_URL";
const READY: Duration = Duration::from_mins(1);

pub(crate) struct Crew {
    children: Vec<Child>,
    orders: Vec<UnboundedSender<Order>>,
    history: Arc<Mutex<History>>,
}

impl Crew {
    /// Starts the processes and waits until all are ready.
    pub(crate) async fn start(settings: &Settings, cluster: &Cluster) -> Result<Self> {
        let messages = File::create(cluster.messages())?;
        let mut crew = Self {
            children: Vec::new(),
            orders: Vec::new(),
            history: Arc::default(),
        };
        let (ready, mut are_ready) = mpsc::unbounded_channel();
        let processes = settings.processes as u64;
        for process in 0..settings.processes {
            let library = Library::ALL[process % Library::ALL.len()];
            let part = |number: u64| (settings.jobs * number / processes).to_string();
            let number = process as u64;
            let mut child = Command::new(std::env::current_exe()?)
                .args(["process", library.word(), &part(number), &part(number + 1)])
                .arg(settings.pushing().as_millis().to_string())
                .env(URL, cluster.url())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // Also what libpq prints of the server's notices.
                .stderr(messages.try_clone()?)
                // The interrupt key is meant for this process, which sees to the others.
                .process_group(0)
                .kill_on_drop(true)
                .spawn()?;
            let input = child.stdin.take().ok_or("no input")?;
            let output = child.stdout.take().ok_or("no output")?;
            let (orders, orders_to_send) = mpsc::unbounded_channel();
            tokio::spawn(send(input, orders_to_send));
            let history = Arc::clone(&crew.history);
            tokio::spawn(hear(
                process,
                output,
                history,
                orders.clone(),
                ready.clone(),
            ));
            crew.children.push(child);
            crew.orders.push(orders);
        }
        for _ in 0..settings.processes {
            timeout(READY, are_ready.recv()).await?;
        }
        Ok(crew)
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn size(&self) -> usize {
        self.children.len()
    }

    pub(crate) fn order(&self, order: Order) {
        for orders in &self.orders {
            // A process that has ended is found by `fallen`.
            let _ended = orders.send(order);
        }
    }

    /// The processes that have ended: a panic in one is as bad as a broken promise.
    pub(crate) fn fallen(&mut self) -> Result<Vec<String>> {
        let mut fallen = Vec::new();
        for (number, child) in self.children.iter_mut().enumerate() {
            if let Some(status) = child.try_wait()? {
                fallen.push(format!(
                    "process {number} has ended: {status}; --log keeps what it said"
                ));
            }
        }
        Ok(fallen)
    }

    /// Ends the processes; what they have told stays.
    pub(crate) async fn end(mut self) -> Result<History> {
        for child in &mut self.children {
            child.kill().await?;
        }
        Ok(std::mem::take(&mut *self.history()))
    }
}

async fn send(mut input: ChildStdin, mut orders: UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        let Ok(mut line) = serde_json::to_vec(&order) else {
            continue;
        };
        line.push(b'\n');
        // A process that has ended is found by `fallen`.
        if input.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn hear(
    process: usize,
    output: ChildStdout,
    history: Arc<Mutex<History>>,
    orders: UnboundedSender<Order>,
    ready: UnboundedSender<usize>,
) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let record = match serde_json::from_str(&line) {
            Ok(Record::Ready) => {
                let _left = ready.send(process);
                continue;
            }
            Ok(record) => record,
            Err(error) => {
                eprintln!("process {process} tells what is no record: {error}: {line}");
                continue;
            }
        };
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((grant, accepted)) = history.note(process, record) {
            let _ended = orders.send(Order::Written { grant, accepted });
        }
    }
}
