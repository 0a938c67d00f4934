//! Drawing the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::state::{Mode, State};
use super::view::{Line, View};
use crate::output::{spoken, time};

const KEYS: &str = "1-8 view  / filter  s sort  Enter details  a act  p pause  ? help  q quit";
const HELP: &[(&str, &str)] = &[
    ("1 to 8, Tab, arrows", "what is shown"),
    ("j k, PgUp PgDn, Home End", "which row"),
    ("/", "only rows that have a text; Esc shows all again"),
    ("s, r", "sort by the next column; the other way round"),
    ("Enter", "all that is known of a row"),
    (
        "a",
        "do something about a row, with a reason for the audit log",
    ),
    ("p", "pause, and go on"),
    ("q, Ctrl-C", "leave"),
];

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [title, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head(state), title);
    frame.render_widget(menu(state, tabs.width), tabs);
    let lines = state.lines();
    match &lines {
        Ok(lines) => table(frame, state, lines, body),
        Err(why) => frame.render_widget(
            Paragraph::new(format!("This could not be read: {why}"))
                .red()
                .wrap(Wrap { trim: true }),
            body,
        ),
    }
    frame.render_widget(bottom(state), foot);
    let lines = lines.unwrap_or_default();
    let selected = state.selected(&lines).and_then(|at| lines.get(at));
    popup(frame, state, selected);
}

fn head(state: &State) -> Paragraph<'static> {
    let mut spans = vec![
        Span::from("lockapi").bold(),
        Span::from(format!("  {}", state.namespace)),
    ];
    match &state.seen {
        Some(seen) => spans.push(
            Span::from(format!(
                "  {}  read in {}",
                time(seen.at),
                spoken(seen.took)
            ))
            .dim(),
        ),
        None => spans.push("  reading…".dim()),
    }
    if state.paused {
        spans.push("  paused".yellow().bold());
    }
    if let Some(why) = &state.failed {
        spans.push(Span::from(format!("  {why}")).red());
    }
    Paragraph::new(Text::from(spans))
}

fn menu(state: &State, width: u16) -> Paragraph<'static> {
    let mut spans = Vec::new();
    for (n, view) in View::ALL.into_iter().enumerate() {
        let name = if width >= 80 || view == state.view {
            view.name()
        } else {
            ""
        };
        let text = format!("{} {name} ", n + 1);
        let style = if view == state.view {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        spans.push(Span::styled(text, style));
        spans.push(Span::from(" "));
    }
    Paragraph::new(Text::from(spans))
}

fn table(frame: &mut Frame<'_>, state: &State, lines: &[Line], area: Rect) {
    if lines.is_empty() && state.seen.is_some() {
        let words = if state.filter.is_empty() {
            "Nothing to show.".to_owned()
        } else {
            format!("Nothing has {:?}; Esc shows all.", state.filter)
        };
        frame.render_widget(Paragraph::new(words).dim(), area);
        return;
    }
    let columns = state.view.columns();
    let head = columns
        .iter()
        .enumerate()
        .map(|(at, (name, _))| match state.sort {
            Some((column, largest)) if column == at => {
                format!("{name} {}", if largest { '▼' } else { '▲' })
            }
            _ => (*name).to_owned(),
        });
    let widths = columns.iter().enumerate().map(|(at, (_, width))| {
        // Names grow, numbers do not.
        if at == 0 || *width > 14 {
            Constraint::Min(*width)
        } else {
            Constraint::Length(*width)
        }
    });
    let rows = lines.iter().map(|line| {
        let row = Row::new(line.cells.clone());
        if line.alarming { row.yellow() } else { row }
    });
    let table = Table::new(rows, widths)
        .header(Row::new(head).bold().underlined())
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut at = TableState::default().with_selected(state.selected(lines));
    frame.render_stateful_widget(table, area, &mut at);
}

fn bottom(state: &State) -> Paragraph<'static> {
    if state.mode == Mode::Filter {
        return Paragraph::new(format!("/{}█", state.filter));
    }
    match &state.told {
        Some((told, true)) => Paragraph::new(told.clone()).green(),
        Some((told, false)) => Paragraph::new(told.clone()).red(),
        None if state.filter.is_empty() => Paragraph::new(KEYS).dim(),
        None => Paragraph::new(format!("/{}  Esc shows all", state.filter)),
    }
}

fn popup(frame: &mut Frame<'_>, state: &State, selected: Option<&Line>) {
    let (title, text): (&str, Vec<Text<'_>>) = match &state.mode {
        Mode::Table | Mode::Filter => return,
        Mode::Help => {
            let key = |(keys, words): &(&str, &str)| {
                Text::from(vec![
                    Span::from(format!("{keys:<26}")).bold(),
                    Span::from((*words).to_owned()),
                ])
            };
            (" Keys ", HELP.iter().map(key).collect())
        }
        Mode::Details => {
            let details = selected
                .map(|line| line.details.clone())
                .unwrap_or_default();
            let line = |(name, text): (&str, String)| {
                Text::from(vec![
                    Span::from(format!("{name:<14}")).bold(),
                    Span::from(text),
                ])
            };
            (" Details ", details.into_iter().map(line).collect())
        }
        Mode::Menu(actions) => {
            let numbered = actions.iter().enumerate();
            let lines = numbered.map(|(n, action)| {
                Text::from(format!(
                    "{}  {}",
                    n + 1,
                    crate::output::plain(&action.question())
                ))
            });
            let mut lines: Vec<_> = lines.collect();
            lines.push(Text::from("Esc leaves it").dim());
            (" What to do ", lines)
        }
        Mode::Reason(action, reason) => (
            " Reason ",
            vec![
                Text::from(crate::output::plain(&action.question()) + "."),
                Text::from(""),
                Text::from(format!("Why? {}█", crate::output::plain(reason))),
                Text::from("Enter goes on, Esc leaves it").dim(),
            ],
        ),
        Mode::Confirm(action, reason) => (
            " Really? ",
            vec![
                Text::from(crate::output::plain(&action.question()) + "?").bold(),
                Text::from(format!("Because: {}", crate::output::plain(reason))),
                Text::from("y does it, n leaves it").fg(Color::Yellow),
            ],
        ),
    };
    let area = middle(frame.area(), &text);
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(title);
    frame.render_widget(
        Paragraph::new(text).block(block).wrap(Wrap { trim: false }),
        area,
    );
}

/// In the middle, as large as it takes and there is room for.
fn middle(area: Rect, text: &[Text<'_>]) -> Rect {
    let width = area.width.saturating_sub(4).clamp(10, 100).min(area.width);
    let inner = usize::from(width.saturating_sub(2).max(1));
    let lines: usize = text
        .iter()
        .map(|line| line.width().div_ceil(inner).max(1))
        .sum();
    let height = u16::try_from(lines + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}
