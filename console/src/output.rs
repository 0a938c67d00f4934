//! Results: tables for people, JSON for programs.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::exit::Exit;
use crate::failure::{Failure, Result};

/// The most columns of a terminal that a cell takes; what is longer is cut, on a terminal only.
const WIDEST: usize = 60;

/// One line of a table, and one object of JSON.
pub(crate) trait Entry: Serialize {
    /// The names of the columns.
    const COLUMNS: &'static [&'static str];

    /// What is in them.
    fn cells(&self) -> Vec<String>;
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// To standard output, as JSON or for people.
    #[must_use]
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Entries, as a table or an array.
    ///
    /// # Errors
    /// Where standard output cannot be written. A reader that has enough is no error.
    pub(crate) fn entries<E: Entry>(self, entries: &[E]) -> Result<()> {
        if self.json {
            return write_json(&entries);
        }
        write_text(&table(entries, io::stdout().is_terminal()))
    }

    /// That something was done, which people are not told.
    ///
    /// # Errors
    /// As for [`entries`](Self::entries).
    pub(crate) fn done(self, action: &str, target: &str) -> Result<()> {
        let done = Done {
            done: action,
            target,
        };
        self.value(&done, |_| String::new())
    }

    /// One value, as JSON or in these words.
    ///
    /// # Errors
    /// As for [`entries`](Self::entries).
    pub(crate) fn value<T: Serialize>(
        self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        if self.json {
            return write_json(value);
        }
        let mut text = words(value);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        write_text(&text)
    }
}

/// What was done.
#[derive(Serialize)]
struct Done<'a> {
    done: &'a str,
    target: &'a str,
}

fn write_json<T: Serialize + ?Sized>(value: &T) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("the result cannot be written as JSON: {error}"),
        )
    })?;
    write_text(&(text + "\n"))
}

fn write_text(text: &str) -> Result<()> {
    write_part(text).map(drop)
}

/// Writes a part of a result; answers whether anybody reads further.
///
/// # Errors
/// Where standard output cannot be written. A reader that has enough is no error.
pub(crate) fn write_part(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(
            Exit::Failed,
            format!("the result cannot be written to standard output: {error}"),
        )),
    }
}

fn table<E: Entry>(entries: &[E], cut: bool) -> String {
    let head = E::COLUMNS.iter().map(|name| name.to_uppercase()).collect();
    let mut lines: Vec<Vec<String>> = vec![head];
    for entry in entries {
        let cells = entry.cells().into_iter().map(|cell| {
            let cell = plain(&cell);
            if cut { shortened(&cell) } else { cell }
        });
        lines.push(cells.collect());
    }
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..E::COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut at = text.len();
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(cell);
            at = text.len();
            text.extend(std::iter::repeat_n(' ', width - cell.width() + 2));
        }
        // No blanks at the end of a line.
        text.truncate(at);
        text.push('\n');
    }
    text
}

/// Names and errors come from others: what would move the cursor or change the terminal is shown instead.
#[must_use]
pub(crate) fn plain(text: &str) -> String {
    let harmless = |letter: char| !letter.is_control() && !is_invisible(letter);
    if text.chars().all(harmless) {
        return text.to_owned();
    }
    let mut shown = String::new();
    for letter in text.chars() {
        if harmless(letter) {
            shown.push(letter);
        } else {
            shown.extend(letter.escape_default());
        }
    }
    shown
}

/// Whether it changes the direction of writing, or shows nothing.
fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

fn shortened(text: &str) -> String {
    if text.width() <= WIDEST {
        return text.to_owned();
    }
    let mut left = WIDEST - 1;
    let fits = |letter: &char| {
        let width = letter.width().unwrap_or_default();
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    let mut short: String = text.chars().take_while(fits).collect();
    short.push('…');
    short
}

/// A duration as people say it: `1h 3m`, `4.2s`, `15ms`.
#[must_use]
pub(crate) fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    if days > 0 {
        format!("{days}d {hours}h")
    } else if hours > 0 {
        format!("{hours}h {minutes}m")
    } else if minutes > 0 {
        format!("{minutes}m {}s", seconds % 60)
    } else if seconds > 0 {
        format!("{seconds}.{}s", duration.subsec_millis() / 100)
    } else {
        format!("{}ms", duration.subsec_millis())
    }
}

/// A duration that may not be known.
#[must_use]
pub(crate) fn spoken_or_unknown(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "-".to_owned(), spoken)
}

/// A time as RFC 3339 in UTC, to the second.
#[must_use]
pub(crate) fn time(time: SystemTime) -> String {
    // What formats it panics outside of the years 1970 to 9999, and a time to live may end later.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}

/// A duration as seconds, for JSON.
///
/// # Errors
/// Those of the serializer.
pub(crate) fn seconds<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// A duration that may not be known as seconds, for JSON.
///
/// # Errors
/// Those of the serializer.
#[allow(clippy::ref_option, reason = "serde passes it so")]
pub(crate) fn maybe_seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => seconds(duration, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod fuzz {
    use lockapi_fuzz::{check, text_like};
    use proptest::{prop_assert, prop_assert_eq};

    use super::*;

    const TEXTS: [&str; 9] = [
        "plain",
        "\u{1b}[31mred\u{7}",
        "a\r\nb\tc",
        "\u{202e}evil\u{2066}",
        "\u{61c}1",
        "日本語",
        "e\u{301}\u{200d}",
        "\u{9b}0m",
        "",
    ];

    /// What changes the direction of letters, by Unicode's property `Bidi_Control`.
    const DIRECTIONS: [char; 12] = [
        '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}',
        '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
    ];

    struct Cells(Vec<String>);

    impl Serialize for Cells {
        fn serialize<S: serde::Serializer>(
            &self,
            serializer: S,
        ) -> std::result::Result<S::Ok, S::Error> {
            serializer.serialize_unit()
        }
    }

    impl Entry for Cells {
        const COLUMNS: &'static [&'static str] = &["one", "two"];

        fn cells(&self) -> Vec<String> {
            self.0.clone()
        }
    }

    /// Terminals are told nothing but letters, and lines and columns stay what they are.
    #[test]
    fn entries_are_lines_of_letters() {
        let lists = proptest::collection::vec((text_like(&TEXTS), text_like(&TEXTS)), 0..4);
        let known = TEXTS.map(|text| (vec![(text.to_owned(), text.repeat(40))], true));
        check(known, &(lists, proptest::bool::ANY), |(list, cut)| {
            let entries: Vec<_> = list
                .iter()
                .map(|(one, two)| Cells(vec![one.clone(), two.clone()]))
                .collect();
            let shown = table(&entries, cut);
            let lines: Vec<_> = shown.split('\n').collect();
            prop_assert_eq!(lines.len(), entries.len() + 2, "{}", shown);
            let harmless = |letter: char| !letter.is_control() && !DIRECTIONS.contains(&letter);
            prop_assert!(lines.concat().chars().all(harmless), "{shown:?}");
            if !cut {
                for (line, (one, two)) in lines[1..].iter().zip(&list) {
                    prop_assert!(
                        line.starts_with(plain(one).trim_end())
                            && line.trim_end().ends_with(plain(two).trim_end()),
                        "{line:?}"
                    );
                }
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_what_can_be_written_are_its_ends() {
        let year_10008 = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365 * 8045);
        assert_eq!(time(year_10008), "9999-12-31T23:59:59Z");
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(time(before), "1970-01-01T00:00:00Z");
    }

    #[derive(Serialize)]
    struct Pair(&'static str, &'static str);

    impl Entry for Pair {
        const COLUMNS: &'static [&'static str] = &["key", "owner"];

        fn cells(&self) -> Vec<String> {
            vec![self.0.to_owned(), self.1.to_owned()]
        }
    }

    #[test]
    fn columns_line_up_whatever_is_in_them() {
        let entries = [Pair("a", "b"), Pair("日本", "c"), Pair("\x1b[31mx", "d")];
        assert_eq!(
            table(&entries, false),
            "KEY          OWNER\na            b\n日本         c\n\\u{1b}[31mx  d\n"
        );
    }

    #[test]
    fn long_cells_are_cut_on_a_terminal_only() {
        let long = "日".repeat(100);
        assert!(shortened(&long).width() <= WIDEST);
        assert!(shortened(&long).ends_with('…'));
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn durations_are_spoken_in_two_units() {
        for (milliseconds, spoken_as) in [
            (15, "15ms"),
            (4_250, "4.2s"),
            (62_000, "1m 2s"),
            (3_780_000, "1h 3m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(spoken(Duration::from_millis(milliseconds)), spoken_as);
        }
    }
}
