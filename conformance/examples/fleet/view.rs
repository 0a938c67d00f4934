//! What is shown meanwhile: a picture that is kept up to date on a terminal, otherwise lines.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::interval;

use crate::Result;
use crate::conduct::{Fleet, Member, State};
use crate::watch::{Snapshot, Watch};

const REDRAW: Duration = Duration::from_millis(200);
const LINE: Duration = Duration::from_secs(2);
/// How many workers the picture has room for.
const ROWS: usize = 14;
const BAR: u8 = 40;

/// Standard output.
pub(crate) struct Screen {
    terminal: bool,
    colour: bool,
    state: Mutex<Picture>,
}

#[derive(Default)]
struct Picture {
    text: String,
    opened: Option<Instant>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal()
            && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb");
        Self {
            terminal,
            colour: terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            state: Mutex::default(),
        }
    }

    /// Writes text that stays, above the picture.
    pub(crate) fn line(&self, text: &str) -> Result<()> {
        self.write(Some(text), None)
    }

    /// Writes something that happens now.
    pub(crate) fn event(&self, text: &str) -> Result<()> {
        let opened = self.picture().opened;
        let at = opened.map_or(0.0, |opened| opened.elapsed().as_secs_f64());
        self.line(&format!("{at:6.1} s  {text}"))
    }

    pub(crate) fn verdict(&self, passed: bool, text: &str) -> Result<()> {
        if self.colour {
            let colour = if passed { 32 } else { 31 };
            self.line(&format!("\x1b[1;{colour}m{text}\x1b[0m"))
        } else {
            self.line(text)
        }
    }

    /// Takes the picture away.
    pub(crate) fn clear(&self) {
        // Whoever closed the output does not miss it.
        drop(self.write(None, Some(String::new())));
    }

    /// Shows how things stand, for as long as it is not dropped.
    pub(crate) async fn follow(
        &self,
        time: Duration,
        store: &dyn Watch,
        fleet: &dyn Fleet,
    ) -> Result<()> {
        self.picture().opened = Some(Instant::now());
        let mut ticks = interval(if self.terminal { REDRAW } else { LINE });
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let snapshot = store.snapshot().await?;
            if self.terminal {
                let picture = picture(&snapshot, &fleet.members()?, time);
                self.write(None, Some(picture))?;
            } else {
                self.event(&format!("{}; {}", figures(&snapshot), holders(&snapshot)))?;
            }
        }
    }

    /// Writes a text that stays and the picture below it, a new one or the one that was there.
    fn write(&self, text: Option<&str>, picture: Option<String>) -> Result<()> {
        let mut state = self.picture();
        let mut out = String::new();
        let lines = state.text.lines().count();
        if lines > 0 {
            // Up to the first line of the picture, and away with it.
            write!(out, "\x1b[{lines}F\x1b[J")?;
        }
        if let Some(text) = text {
            writeln!(out, "{text}")?;
        }
        if let Some(picture) = picture {
            state.text = picture;
        }
        if !state.text.is_empty() {
            // Lines that are too long are cut off, so that every line is one on the screen.
            write!(out, "\x1b[?7l{}\x1b[?7h", state.text)?;
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(out.as_bytes())?;
        stdout.flush()?;
        Ok(())
    }

    fn picture(&self) -> MutexGuard<'_, Picture> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn figures(snapshot: &Snapshot) -> String {
    let Snapshot {
        due,
        completed,
        failed,
        counts,
        ..
    } = snapshot;
    let running: usize = snapshot.busy.iter().map(|busy| busy.tasks.len()).sum();
    format!(
        "due {due}, completed {completed}, running {running}, delivery lost {failed}, refused {}",
        counts.refused
    )
}

fn holders(snapshot: &Snapshot) -> String {
    let Some(busiest) = snapshot.busy.first() else {
        return "nobody has a task".to_owned();
    };
    let (node, tasks) = (&busiest.node, busiest.tasks.join(", "));
    match snapshot.busy.len() - 1 {
        0 => format!("{node} has {tasks}"),
        1 => format!("{node} has {tasks}, 1 other has some"),
        others => format!("{node} has {tasks}, {others} others have some"),
    }
}

fn picture(snapshot: &Snapshot, members: &[Member], time: Duration) -> String {
    let part = (snapshot.elapsed.as_secs_f64() / time.as_secs_f64()).min(1.0);
    let filled = (0..BAR)
        .filter(|cell| f64::from(*cell) < part * f64::from(BAR))
        .count();
    let phase = if part < 1.0 {
        format!(
            "{:.0} of {} s",
            snapshot.elapsed.as_secs_f64(),
            time.as_secs()
        )
    } else {
        "finishing what is due".to_owned()
    };
    let mut text = format!(
        "\n  [{}{}] {phase}\n  {}\n\n",
        "#".repeat(filled),
        ".".repeat(usize::from(BAR) - filled),
        figures(snapshot)
    );
    for member in members.iter().rev().take(ROWS).rev() {
        let busy = snapshot.busy.iter().find(|busy| busy.node == member.node);
        let tasks = busy.map(|busy| busy.tasks.join(" ")).unwrap_or_default();
        let state = match member.state {
            State::Running => "",
            State::Stopped => "stopped",
            State::Killed | State::Fallen => "killed",
            State::Done => "done",
            State::Crashed => "failed",
        };
        text.push_str(format!("  {:<10} {state:<8} {tasks}", member.node).trim_end());
        text.push('\n');
    }
    if members.len() > ROWS {
        let more = members.len() - ROWS;
        let _ok = writeln!(text, "  and {more} more");
    }
    text
}
