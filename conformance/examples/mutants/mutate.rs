//! Changes of a statement that keep the length of its text.

use std::fmt;

/// A change of a line of a statement, or of several that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutation {
    pub(crate) kind: Kind,
    /// The number of the first line in the file, from 1 on.
    pub(crate) line: usize,
    /// Where that begins in the file, in bytes.
    pub(crate) at: usize,
    pub(crate) old: String,
    /// As long as the old one, if it fits.
    pub(crate) new: String,
}

impl Mutation {
    /// Whether the text with the change is as long as without.
    pub(crate) fn fits(&self) -> bool {
        self.old.len() == self.new.len()
    }
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `SKIP LOCKED` is removed: the statement waits.
    SkipLocked,
    /// `FOR UPDATE` or `FOR KEY SHARE` is removed, with `SKIP LOCKED`.
    Lock,
    /// `ORDER BY` is removed.
    Order,
    /// `ORDER BY` is reversed in its last column.
    Reverse,
    /// `LIMIT` is removed.
    Limit,
    /// `ON CONFLICT … DO NOTHING` is removed.
    Conflict,
    /// A line that begins with `AND` is removed.
    Predicate,
    /// A comparison is another one.
    Comparison,
    /// `AND` is `OR`, or a `NOT` is removed or added.
    Logic,
    /// A constant, a sign, `greatest` or `least` is another one.
    Value,
    /// A lock of rows is a weaker one.
    Weaker,
    /// The time is another one: of the clock, of the beginning of the statement or of the transaction.
    Clock,
    /// The first condition of a `WHERE` is removed.
    First,
    /// A condition after `AND` is removed that has several lines, or does not end with its line.
    Condition,
}

impl Kind {
    pub(crate) const ALL: [Self; 14] = [
        Self::SkipLocked,
        Self::Lock,
        Self::Order,
        Self::Reverse,
        Self::Limit,
        Self::Conflict,
        Self::Predicate,
        Self::Comparison,
        Self::Logic,
        Self::Value,
        Self::Weaker,
        Self::Clock,
        Self::First,
        Self::Condition,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SkipLocked => "skip-locked",
            Self::Lock => "lock",
            Self::Order => "order",
            Self::Reverse => "reverse",
            Self::Limit => "limit",
            Self::Conflict => "conflict",
            Self::Predicate => "predicate",
            Self::Comparison => "comparison",
            Self::Logic => "logic",
            Self::Value => "value",
            Self::Weaker => "weaker",
            Self::Clock => "clock",
            Self::First => "first",
            Self::Condition => "condition",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Words, and what they are replaced by.
const WORDS: &[(Kind, &str, &[&str])] = &[
    (Kind::Comparison, " >= ", &[" > ", " <= "]),
    (Kind::Comparison, " > ", &[" >= ", " < "]),
    (Kind::Comparison, " <= ", &[" < ", " >= "]),
    (Kind::Comparison, " < ", &[" <= ", " > "]),
    (Kind::Comparison, " = ", &[" <> "]),
    (Kind::Comparison, " <> ", &[" = "]),
    (Kind::Comparison, ".>=)", &[".>)", ".<=)"]),
    (Kind::Comparison, ".>)", &[".>=)", ".<)"]),
    (Kind::Comparison, ".<=)", &[".<)", ".>=)"]),
    (Kind::Comparison, ".<)", &[".<=)", ".>)"]),
    (Kind::Comparison, ".=)", &[".<>)"]),
    (Kind::Comparison, ".<>)", &[".=)"]),
    (Kind::Logic, " AND ", &[" OR "]),
    (Kind::Logic, " OR ", &[" AND "]),
    (Kind::Logic, "NOT ", &[""]),
    (Kind::Logic, " IS NULL", &[" IS NOT NULL"]),
    (Kind::Value, " + ", &[" - "]),
    (Kind::Value, " - ", &[" + "]),
    (Kind::Value, ".+)", &[".-)"]),
    (Kind::Value, ".-)", &[".+)"]),
    (Kind::Value, "greatest(", &["least("]),
    (Kind::Value, "least(", &["greatest("]),
    (Kind::Value, "true", &["null", "false"]),
    (Kind::Value, "false", &["true"]),
    (Kind::Value, "0", &["1"]),
    (Kind::Value, "1", &["0"]),
    (Kind::Weaker, "FOR UPDATE", &["FOR SHARE"]),
    (Kind::Weaker, "FOR SHARE", &["FOR KEY SHARE"]),
    (Kind::Weaker, "FOR NO KEY UPDATE", &["FOR SHARE"]),
    (
        Kind::Clock,
        "pg_catalog.clock_timestamp()",
        &["pg_catalog.statement_timestamp()"],
    ),
    (
        Kind::Clock,
        "pg_catalog.statement_timestamp()",
        &["pg_catalog.clock_timestamp()", "pg_catalog.now()"],
    ),
];

/// All changes of a text that this program knows.
pub(crate) fn mutations(text: &str) -> Vec<Mutation> {
    let mut all = Vec::new();
    let mut at = 0;
    for (line, old) in (1..).zip(text.split_inclusive('\n')) {
        let bare = old.trim_end();
        // Comments are not executed.
        if !bare.trim_start().starts_with("--") {
            // What ends a statement of a function stays.
            let (clause, end) = match bare.strip_suffix(';') {
                Some(clause) => (clause, ";"),
                None => (bare, ""),
            };
            let of_line = changes(clause).into_iter();
            let of_line = of_line.map(|(kind, new)| (kind, bare, new + end));
            let rest = &text[at..];
            for (kind, old, new) in of_line.chain(condition(rest)) {
                if new.trim() == old.trim() {
                    continue;
                }
                let (old, new) = fitted(rest, old, new.trim());
                all.push(Mutation {
                    kind,
                    line,
                    at,
                    old,
                    new,
                });
            }
        }
        at += old.len();
    }
    all
}

/// A change may take the indentation of so many lines after it.
const FOLLOWING: usize = 12;

/// What the text begins with that is changed, and the change in the length of that. Indentation makes room for what is longer: that
/// of the change itself, or of lines after it, which then belong to it. What does not fit is longer than what it replaces.
fn fitted(text: &str, old: &str, new: &str) -> (String, String) {
    let (mut end, mut changed) = (old.len(), new.to_owned());
    for _ in 0..=FOLLOWING {
        if changed.len() <= end {
            let indented = " ".repeat(end - changed.len()) + &changed;
            return (text[..end].to_owned(), indented);
        }
        let begin = text[end..].find('\n').map_or(text.len(), |at| end + at + 1);
        // The quotes of a function end what is changed.
        let line = text[begin..].lines().next();
        let Some(line) = line.filter(|line| !line.contains("$$")) else {
            break;
        };
        end = begin + line.len();
        changed.push('\n');
        changed.push_str(line.trim());
    }
    (old.to_owned(), new.to_owned())
}

fn changes(line: &str) -> Vec<(Kind, String)> {
    let mut changes = Vec::new();
    let mut without = |kind, from: usize, to: usize| {
        changes.push((kind, format!("{}{}", &line[..from], &line[to..])));
    };
    for clause in ["FOR UPDATE", "FOR KEY SHARE", "FOR SHARE"] {
        if let Some(from) = line.find(clause) {
            without(Kind::Lock, from, end_of_clause(line, from));
        }
    }
    if let Some(from) = line.find(" SKIP LOCKED") {
        without(Kind::SkipLocked, from, from + " SKIP LOCKED".len());
    }
    if let Some(from) = line.find("LIMIT ") {
        without(Kind::Limit, from, end_of_clause(line, from));
    }
    if let Some(from) = line
        .find("ON CONFLICT")
        .filter(|_| line.ends_with("DO NOTHING"))
    {
        without(Kind::Conflict, from, line.len());
    }
    if line.trim_start().starts_with("AND ") && is_closed(line) {
        without(Kind::Predicate, 0, line.len());
    }
    if let Some(from) = line.find("ORDER BY ") {
        let to = end_of_clause(line, from);
        without(Kind::Order, from, to);
        let reversed = match line[from..to].strip_suffix(" DESC") {
            Some(other) => other.to_owned(),
            None => format!("{} DESC", &line[from..to]),
        };
        let text = format!("{}{reversed}{}", &line[..from], &line[to..]);
        changes.push((Kind::Reverse, text));
    }
    for (kind, word, others) in WORDS {
        for (from, _) in line
            .match_indices(word)
            .filter(|(at, _)| stands_alone(line, *at, word))
        {
            for other in *others {
                let rest = &line[from + word.len()..];
                // An expression that keeps an index from being used has the same value.
                if *word == " + " && stands_alone(rest, 0, "0") && rest.starts_with('0') {
                    continue;
                }
                changes.push((*kind, format!("{}{other}{rest}", &line[..from])));
            }
        }
    }
    changes
}

/// What may follow the conditions of a `WHERE` in a line.
const AFTER_CONDITIONS: [&str; 7] = [
    ";",
    " OFFSET ",
    " ORDER BY ",
    " LIMIT ",
    " GROUP BY ",
    " FOR ",
    " DO ",
];

/// The first condition that begins in the first line of a text, unless that is a line of its own after `AND`: the kind of
/// the change, the lines that it is in, and these lines without it.
fn condition(text: &str) -> Option<(Kind, &str, String)> {
    let line = text.lines().next()?;
    let (kind, from, instead) = match line.find("WHERE ") {
        Some(at) => (Kind::First, at + "WHERE ".len(), "true"),
        None if line.trim_start().starts_with("AND ") && !is_closed(line) => {
            (Kind::Condition, line.find("AND ")?, "")
        }
        None => return None,
    };
    let mut depth = 0;
    let mut is_range = false;
    let (mut end, mut next) = (text.len(), None);
    for (at, sign) in text[from..].char_indices().map(|(at, it)| (from + at, it)) {
        let rest = &text[at..];
        match sign {
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            ' ' if rest.starts_with(" BETWEEN ") => is_range = true,
            ' ' if kind == Kind::First && rest.starts_with(" AND ") && !is_range => {
                next = Some(at + " AND ".len());
                break;
            }
            ' ' if rest.starts_with(" AND ") => is_range = false,
            ')' | '\n' => {
                end = at;
                break;
            }
            _ if AFTER_CONDITIONS.iter().any(|it| rest.starts_with(it)) => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    let to = next.unwrap_or(end);
    let last = text[to..].find('\n').map_or(text.len(), |at| to + at);
    let instead = if next.is_some() { "" } else { instead };
    let new = format!("{}{instead}{}", &text[..from], &text[to..last]);
    Some((kind, &text[..last], new))
}

/// Where a clause ends that begins there: at the parenthesis that closes what it is in, or with the line.
fn end_of_clause(line: &str, from: usize) -> usize {
    let mut depth = 0;
    for (at, sign) in line[from..].char_indices() {
        match sign {
            '(' => depth += 1,
            ')' if depth == 0 => return from + at,
            ')' => depth -= 1,
            _ => {}
        }
    }
    line.len()
}

/// Whether all parentheses that a line opens are closed in it, and no others.
fn is_closed(line: &str) -> bool {
    let mut depth = 0;
    for sign in line.chars() {
        match sign {
            '(' => depth += 1,
            ')' if depth == 0 => return false,
            ')' => depth -= 1,
            _ => {}
        }
    }
    depth == 0
}

/// Whether a word or a number is not part of another one, or of the name of a parameter.
fn stands_alone(line: &str, at: usize, word: &str) -> bool {
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || "_$.'\"".contains(sign);
    let edges = (word.chars().next(), word.chars().next_back());
    let before = line[..at].chars().next_back();
    let after = line[at + word.len()..].chars().next();
    let joined = |edge: Option<char>, beside: Option<char>| {
        edge.is_some_and(|edge| edge.is_ascii_alphanumeric()) && beside.is_some_and(is_part)
    };
    !joined(edges.0, before) && !joined(edges.1, after)
}

#[cfg(test)]
mod cases {
    use super::*;

    #[test]
    fn what_is_longer_takes_the_indentation_of_the_lines_after_it() {
        let clock = |text: &str| {
            let all = mutations(text);
            let of = all.into_iter().find(|it| it.kind == Kind::Clock);
            of.expect("a change")
        };
        let (old, new) = ("clock_timestamp()", "statement_timestamp()");
        let text = format!("  SELECT pg_catalog.{old}\n    FROM a\n   WHERE b\n");
        let change = clock(&text);
        assert!(change.fits());
        assert_eq!(change.old, text[..text.len() - "\n   WHERE b\n".len()]);
        assert_eq!(
            change.new.trim(),
            format!("SELECT pg_catalog.{new}\nFROM a")
        );
        let last = clock(&format!("SELECT pg_catalog.{old}\n$$    ;\n"));
        assert!(!last.fits());
        assert_eq!(last.new, format!("SELECT pg_catalog.{new}"));
    }

    #[test]
    fn what_ends_a_statement_stays() {
        let text = "        AND k.at > instant;\n        FOR UPDATE OF j SKIP LOCKED;\n        LIMIT 1);\n";
        let all = mutations(text);
        let of = |kind| {
            let mut of = all.iter().filter(move |it: &&Mutation| it.kind == kind);
            of.next().expect("a change").new.trim()
        };
        assert_eq!(of(Kind::Predicate), ";");
        assert_eq!(of(Kind::Lock), ";");
        assert_eq!(of(Kind::SkipLocked), "FOR UPDATE OF j;");
        assert_eq!(of(Kind::Limit), ");");
    }

    #[test]
    fn conditions_are_removed_whole() {
        let all = |text| {
            let of = mutations(text).into_iter();
            let of = of.filter(|it| [Kind::First, Kind::Condition].contains(&it.kind));
            let new = of.map(|it| {
                assert_eq!(it.new.len(), it.old.len());
                it.new.split_whitespace().collect::<Vec<_>>().join(" ")
            });
            new.collect::<Vec<_>>()
        };
        let text = "   WHERE a.b = 1 AND a.c BETWEEN 1 AND 2\n     AND a.d = 3\n";
        assert_eq!(all(text), ["WHERE a.c BETWEEN 1 AND 2"]);
        let text = "   WHERE a.c BETWEEN 1 AND 2 AND a.d = 3\n";
        assert_eq!(all(text), ["WHERE a.d = 3"]);
        let text = "   WHERE (a.b = 1\n          OR a.c = 2)\n     AND a.d = 3\n";
        assert_eq!(all(text), ["WHERE true"]);
        let text = "   SELECT (SELECT a.b FROM a WHERE a.c = c OFFSET 0) AS b\n";
        assert_eq!(
            all(text),
            ["SELECT (SELECT a.b FROM a WHERE true OFFSET 0) AS b"]
        );
        let text = "   AND (a.b = 1\n        OR a.c = 2)) AS one\n";
        assert_eq!(all(text), [") AS one"]);
    }
}
