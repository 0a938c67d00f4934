//! `lockapi top`: the state of a database on a terminal.
//!
//! [`state`] decides, without a terminal or a database; [`view`] makes the rows of a snapshot; [`draw`] draws;
//! this module owns the terminal and the clock.

mod draw;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lockapi::Backend;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::action::Outcome;
use crate::arguments::Global;
use crate::common::close;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::watch::Watch;
use state::{Effect, State};

/// Statements of the screen take no longer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long it may take until the keyboard is left alone.
const GLANCE: Duration = Duration::from_millis(100);

/// Show locks, waits, queues, schedules and limits, and act on them
///
/// The number keys choose what is shown, / filters, s sorts, Enter tells all of a row, and a does something about
/// it, which takes a reason for the audit log. ? lists all keys.
#[derive(Clone, Debug, Args)]
pub(crate) struct Top {
    /// How often it is read anew, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,

    /// Offer nothing that changes anything
    #[arg(long)]
    read_only: bool,
}

/// What comes back from the database.
enum Answer {
    Seen(Result<Arc<crate::watch::Snapshot>, lockapi::Error>),
    Done(Result<Outcome, lockapi::Error>),
}

impl Top {
    pub(crate) async fn run(&self, global: &Global) -> Result<Exit> {
        if global.json {
            let message = "--json with top, which draws a screen; allowed with the commands that list, such as `lockapi lock list --json`";
            return Err(Failure::usage(message));
        }
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            let message = "top takes a terminal; allowed elsewhere are the commands that list, such as `lockapi lock list --json`";
            return Err(Failure::usage(message));
        }
        let options = global.place.options()?.timeout(TIMEOUT).notes(false);
        let backend = global.place.connect_with(options).await?;
        let terminal = ratatui::try_init().map_err(broken)?;
        let shown = self.show(terminal, Arc::clone(&backend)).await;
        ratatui::try_restore().map_err(broken)?;
        close(&*backend).await;
        shown?;
        Ok(Exit::Success)
    }

    async fn show(&self, mut terminal: DefaultTerminal, backend: Arc<dyn Backend>) -> Result<()> {
        let mut state = State::new(backend.namespace(), self.read_only);
        let watch = Arc::new(Watch::new(backend, true));
        let (keys, mut pressed) = mpsc::channel(64);
        let keyboard = Keyboard::new(keys);
        // One question is under way at most, and one action.
        let (answers, mut answered) = mpsc::channel(4);
        let mut asking = false;
        let mut ticks = interval(Duration::from_secs(self.every));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = std::pin::pin!(terminated());
        loop {
            terminal
                .draw(|frame| draw::draw(frame, &mut state))
                .map_err(broken)?;
            let effect = tokio::select! {
                () = &mut stop => Effect::Quit,
                _ = ticks.tick() => if asking { Effect::None } else { Effect::Look },
                event = pressed.recv() => match event {
                    Some(Event::Key(key)) => state.press(key),
                    Some(_) => Effect::None,
                    // The keyboard is gone, and with it whoever could end this.
                    None => Effect::Quit,
                },
                answer = answered.recv() => match answer {
                    Some(Answer::Seen(seen)) => { asking = false; state.see(seen); Effect::None }
                    Some(Answer::Done(done)) => { state.tell(done); Effect::Look }
                    None => Effect::Quit,
                },
            };
            match effect {
                Effect::None => {}
                Effect::Quit => break,
                Effect::Look => {
                    asking = true;
                    let (watch, answers) = (Arc::clone(&watch), answers.clone());
                    tokio::spawn(async move {
                        // Whoever asked may have left.
                        let _left = answers.send(Answer::Seen(watch.look().await)).await;
                    });
                }
                Effect::Perform(action, reason) => {
                    let (watch, answers) = (Arc::clone(&watch), answers.clone());
                    tokio::spawn(async move {
                        let done = action.perform(watch.backend(), &reason, "in top").await;
                        watch.forget(action.queue()).await;
                        let _left = answers.send(Answer::Done(done)).await;
                    });
                }
            }
        }
        drop(keyboard);
        Ok(())
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is mapped over errors")]
fn broken(error: io::Error) -> Failure {
    Failure::new(
        Exit::Failed,
        format!("the terminal cannot be used: {error}"),
    )
}

async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            terminate.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

/// Reads keys on a thread of its own, until it is dropped.
struct Keyboard {
    over: Arc<AtomicBool>,
}

impl Keyboard {
    fn new(keys: mpsc::Sender<Event>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                match event::poll(GLANCE) {
                    Ok(false) => {}
                    Ok(true) => match event::read() {
                        Ok(event) => {
                            if keys.blocking_send(event).is_err() {
                                return;
                            }
                        }
                        Err(_) => return,
                    },
                    Err(_) => return,
                }
            }
        });
        Self { over }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
