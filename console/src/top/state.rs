//! What is shown and what keys do, without a terminal.

use std::sync::Arc;

use lockapi::Error;
use lockapi::admin::MAX_REASON_BYTES;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::{Line, View, lines};
use crate::action::{Action, Outcome};
use crate::output::plain;
use crate::watch::Snapshot;

/// What is to be done because of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Quit,
    Look,
    Perform(Action, String),
}

/// What keys mean at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// A filter is typed.
    Filter,
    Help,
    Details,
    /// One of the actions of a row is chosen.
    Menu(Vec<Action>),
    /// The reason of an action is typed.
    Reason(Action, String),
    /// Whether it is meant.
    Confirm(Action, String),
}

/// The screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) namespace: String,
    pub(super) view: View,
    pub(super) mode: Mode,
    pub(super) filter: String,
    /// The column that rows are sorted by, and whether the largest come first; else as they were read.
    pub(super) sort: Option<(usize, bool)>,
    pub(super) paused: bool,
    /// What came of the last action, and whether that was good.
    pub(super) told: Option<(String, bool)>,
    /// Why the database could not be read, at last.
    pub(super) failed: Option<String>,
    pub(super) seen: Option<Arc<Snapshot>>,
    selected: String,
    read_only: bool,
}

impl State {
    pub(super) fn new(namespace: &str, read_only: bool) -> Self {
        Self {
            namespace: plain(namespace),
            view: View::Queues,
            mode: Mode::Table,
            filter: String::new(),
            sort: None,
            paused: false,
            told: None,
            failed: None,
            seen: None,
            selected: String::new(),
            read_only,
        }
    }

    /// Shows what was read, unless the screen is paused.
    pub(super) fn see(&mut self, seen: Result<Arc<Snapshot>, Error>) {
        match seen {
            Ok(seen) => {
                self.failed = None;
                if !self.paused {
                    self.seen = Some(seen);
                }
            }
            Err(error) => self.failed = Some(plain(&error.to_string())),
        }
    }

    /// Tells what came of an action.
    pub(super) fn tell(&mut self, done: Result<Outcome, Error>) {
        self.told = Some(match done {
            Ok(outcome) => {
                let absent = matches!(outcome, Outcome::Absent(_));
                (plain(outcome.told()), !absent)
            }
            Err(error) => (plain(&error.to_string()), false),
        });
    }

    /// The rows that are shown, or why there are none.
    pub(super) fn lines(&self) -> Result<Vec<Line>, String> {
        let Some(seen) = &self.seen else {
            return Ok(Vec::new());
        };
        let mut lines = lines(self.view, seen)?;
        lines.retain(|line| line.matches(&self.filter));
        if let Some((column, largest)) = self.sort {
            lines.sort_by_cached_key(|line| line.rank(column));
            if largest {
                lines.reverse();
            }
        }
        Ok(lines)
    }

    /// Which of the rows is selected: the one that was, wherever it is now, or else the first.
    pub(super) fn selected(&self, lines: &[Line]) -> Option<usize> {
        let found = lines.iter().position(|line| line.key() == self.selected);
        found.or((!lines.is_empty()).then_some(0))
    }

    fn line(&self) -> Option<Line> {
        let lines = self.lines().ok()?;
        let at = self.selected(&lines)?;
        lines.into_iter().nth(at)
    }

    fn step(&mut self, by: isize) {
        let lines = self.lines().unwrap_or_default();
        let Some(at) = self.selected(&lines) else {
            return;
        };
        let to = at.saturating_add_signed(by).min(lines.len() - 1);
        lines[to].key().clone_into(&mut self.selected);
    }

    fn show(&mut self, view: View) {
        if self.view != view {
            self.view = view;
            self.sort = None;
            self.selected.clear();
        }
    }

    /// Another view, so many further.
    fn turn(&mut self, by: usize) {
        let at = View::ALL.iter().position(|view| *view == self.view);
        self.show(View::ALL[(at.unwrap_or_default() + by) % View::ALL.len()]);
    }

    /// Does what a key means.
    pub(super) fn press(&mut self, key: KeyEvent) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Effect::Quit,
                _ => Effect::None,
            };
        }
        match std::mem::replace(&mut self.mode, Mode::Table) {
            Mode::Table => self.in_table(key.code),
            Mode::Filter => self.in_filter(key.code),
            // Any key leads back.
            Mode::Help | Mode::Details => Effect::None,
            Mode::Menu(actions) => self.in_menu(actions, key.code),
            Mode::Reason(action, reason) => self.in_reason(action, reason, key.code),
            Mode::Confirm(action, reason) => match key.code {
                KeyCode::Char('y') => {
                    self.told = Some(("It is being done…".to_owned(), true));
                    Effect::Perform(action, reason)
                }
                KeyCode::Char('n') | KeyCode::Esc => Effect::None,
                // It takes a clear answer.
                _ => {
                    self.mode = Mode::Confirm(action, reason);
                    Effect::None
                }
            },
        }
    }

    fn in_table(&mut self, code: KeyCode) -> Effect {
        match code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Esc if self.filter.is_empty() => self.told = None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char(digit @ '1'..='8') => {
                let at = usize::from(digit as u8 - b'1');
                self.show(View::ALL[at]);
            }
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(View::ALL.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                let columns = self.view.columns().len();
                let next = self.sort.map_or(0, |(column, _)| column + 1);
                // Large numbers matter more, names are read from the top.
                self.sort = (next < columns).then_some((next, next > 0));
            }
            KeyCode::Char('r') => {
                if let Some((_, largest)) = &mut self.sort {
                    *largest = !*largest;
                }
            }
            KeyCode::Enter if self.line().is_some() => self.mode = Mode::Details,
            KeyCode::Char('a') if self.read_only => {
                self.told = Some(("It was started with --read-only.".to_owned(), false));
            }
            KeyCode::Char('a') => {
                let actions = self.line().map(|line| line.actions).unwrap_or_default();
                if actions.is_empty() {
                    self.told = Some(("There is nothing to do about this row.".to_owned(), false));
                } else {
                    self.mode = Mode::Menu(actions);
                }
            }
            _ => {}
        }
        Effect::None
    }

    fn in_filter(&mut self, code: KeyCode) -> Effect {
        match code {
            KeyCode::Enter => return Effect::None,
            KeyCode::Esc => {
                self.filter.clear();
                return Effect::None;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.len() < 100 => self.filter.push(letter),
            _ => {}
        }
        self.mode = Mode::Filter;
        Effect::None
    }

    fn in_menu(&mut self, actions: Vec<Action>, code: KeyCode) -> Effect {
        let chosen = match code {
            KeyCode::Enter => Some(0),
            KeyCode::Char(digit @ '1'..='9') => Some(usize::from(digit as u8 - b'1')),
            KeyCode::Esc | KeyCode::Char('q') => return Effect::None,
            _ => None,
        };
        self.mode = match chosen.and_then(|at| actions.get(at)) {
            Some(action) => Mode::Reason(action.clone(), String::new()),
            None => Mode::Menu(actions),
        };
        Effect::None
    }

    fn in_reason(&mut self, action: Action, mut reason: String, code: KeyCode) -> Effect {
        match code {
            KeyCode::Esc => return Effect::None,
            KeyCode::Enter if !reason.trim().is_empty() => {
                self.mode = Mode::Confirm(action, reason);
                return Effect::None;
            }
            KeyCode::Backspace => {
                reason.pop();
            }
            KeyCode::Char(letter) if reason.len() < MAX_REASON_BYTES - 100 => reason.push(letter),
            _ => {}
        }
        self.mode = Mode::Reason(action, reason);
        Effect::None
    }
}
