//! The server's code, from its message, for drivers that do not tell the code.

use std::borrow::Cow;

/// How a message begins or what it contains, and the code that the server sends with it.
const MESSAGES: &[(&str, &str)] = &[
    ("out of shared memory", "53200"),
    ("too many clients already", "53300"),
    ("remaining connection slots", "53300"),
    ("too many connections for", "53300"),
    ("No space left on device", "53100"),
    ("due to lock timeout", "55P03"),
    ("canceling statement due to", "57014"),
    ("deadlock detected", "40P01"),
    ("permission denied", "42501"),
    ("current transaction is aborted", "25P02"),
    ("can only be used in transaction blocks", "25P01"),
    ("read-write mode during recovery", "0A000"),
    ("password authentication failed", "28P01"),
    ("the database system is", "57P03"),
    ("invalid byte sequence", "22021"),
    ("has no equivalent in encoding", "22P05"),
    // Of servers and poolers that do not know what became of a statement.
    ("result is ambiguous", "40003"),
    ("terminating connection", "57P01"),
];

/// What the server quotes of `check_work.sql`, which has no other way to tell it.
const WORK_HAS_ENDED: &str = "the transaction of the work has ended";

/// What does not exist, and the code for that.
const MISSING: &[(&str, &str)] = &[
    ("schema ", "3F000"),
    // Before the relation, which the message of a column names as well.
    ("column ", "42703"),
    ("relation ", "42P01"),
    ("function ", "42883"),
    ("database ", "3D000"),
];

/// What this library acts upon in other languages than English, as in the catalogs of PostgreSQL 15: Chinese, French,
/// Georgian, German, Italian, Japanese, Korean, Russian, Spanish, Swedish and Ukrainian.
const TRANSLATED: &[(&str, &[&str])] = &[
    (
        "55P03",
        &[
            "storniere Anfrage wegen Zeitüberschreitung einer Sperre",
            "cancelando la sentencia debido a que se agotó el tiempo de espera de candados (locks)",
            "annulation de la requête à cause du délai écoulé pour l'obtention des verrous",
            "annullamento dell'istruzione a causa di timeout di lock",
            "ロックのタイムアウトのためステートメントをキャンセルしています",
            "გამოსახულება გაუქმდება ბლოკის მოლოდინის ვადის ამოწურვის გამო",
            "잠금 대기 시간 초과로 작업을 취소합니다.",
            "выполнение оператора отменено из-за тайм-аута блокировки",
            "avbryter sats på grund av lås-timeout",
            "виконання оператора скасовано через тайм-аут блокування",
            "由于锁超时，取消语句操作",
        ],
    ),
    (
        "40P01",
        &[
            "Verklemmung (Deadlock) entdeckt",
            "se ha detectado un deadlock",
            "interblocage (deadlock) détecté",
            "rilevato deadlock",
            "デッドロックを検出しました",
            "ნაპოვნია ურთიერთბლოკირება",
            "deadlock 발생했음",
            "обнаружена взаимоблокировка",
            "deadlock upptäckt",
            "виявлено взаємне блокування",
            "检测到死锁",
        ],
    ),
    (
        "53200",
        &[
            "Shared Memory aufgebraucht",
            "memoria compartida agotada",
            "mémoire partagée épuisée",
            "memoria condivisa esaurita",
            "共有メモリが足りません",
            "არასაკმარისი გაზიარებული მეხსიერება",
            "공유 메모리 부족",
            "нехватка разделяемой памяти",
            "slut på delat minne",
            "нестача спільної пам'яті",
            "共享内存用尽",
        ],
    ),
];

/// The SQLSTATE that the server sends with this message, for a driver that passes on the message alone.
///
/// It knows the messages that this library acts upon: in English, and of a lock wait that timed out, of a
/// deadlock and of a full lock table also in eleven other languages.
///
/// What the server quotes decides nothing: it may be a value of the program's users.
#[must_use]
pub fn sqlstate_of_message(message: &str) -> Option<&'static str> {
    let told = without_quotes(message);
    let has_ended = message.contains(WORK_HAS_ENDED).then_some("25P01");
    let own = of_another_session(message).or(has_ended);
    let message = &*told;
    let known = MESSAGES.iter().find(|(text, _)| message.contains(text));
    let missing = || {
        let missing = MISSING.iter().find(|(what, _)| message.contains(what));
        missing.filter(|_| message.contains("does not exist"))
    };
    let translated = || {
        let says = |texts: &&[&str]| texts.iter().any(|text| message.contains(text));
        let code = TRANSLATED.iter().find(|(_, texts)| says(texts));
        code.map(|(code, _)| *code)
    };
    let code = known.or_else(missing).map(|(_, code)| *code);
    code.or(own).or_else(translated)
}

/// The message without what is between its first and its last quotation mark. Not of what quotes no values, and says something
/// in between: what connecting failed with has names of hosts and roles, and a character without an equivalent two encodings.
fn without_quotes(message: &str) -> Cow<'_, str> {
    const MARKS: &[char] = &[
        '"', '\u{bb}', '\u{ab}', '\u{201c}', '\u{201d}', '\u{201e}', '\u{300c}', '\u{300d}',
    ];
    let (first, last) = (message.find(MARKS), message.rfind(MARKS));
    match (first, last) {
        (Some(first), Some(last))
            if !message[..first].contains("connection to ")
                && !message.starts_with("character with byte sequence ") =>
        {
            let mark = message[last..].chars().next().map_or(0, char::len_utf8);
            Cow::Owned(format!("{}{}", &message[..first], &message[last + mark..]))
        }
        _ => Cow::Borrowed(message),
    }
}

/// A prepared statement of the connection is missing, or one of another is there.
fn of_another_session(message: &str) -> Option<&'static str> {
    let named = message.strip_prefix("prepared statement ")?;
    if named.ends_with("does not exist") {
        return Some("26000");
    }
    named.ends_with("already exists").then_some("42P05")
}

#[cfg(test)]
mod tests {
    use super::sqlstate_of_message;

    #[test]
    fn messages_tell_the_code() {
        for (message, code) in [
            ("out of shared memory", "53200"),
            ("relation \"lockapi.lease\" does not exist", "42P01"),
            ("column \"a\" of relation \"b\" does not exist", "42703"),
            ("permission denied for schema lockapi", "42501"),
            ("prepared statement \"s18\" does not exist", "26000"),
            ("prepared statement \"s18\" already exists", "42P05"),
            ("SAVEPOINT can only be used in transaction blocks", "25P01"),
            (
                "storniere Anfrage wegen Zeitüberschreitung einer Sperre",
                "55P03",
            ),
            ("検出 デッドロックを検出しました", "40P01"),
        ] {
            assert_eq!(sqlstate_of_message(message), Some(code), "{message}");
        }
        for (said, code) in [
            (
                r#"invalid input value for enum mood: "deadlock detected""#,
                None,
            ),
            (
                r#"invalid input value for enum mood: "a" terminating connection "b""#,
                None,
            ),
            (
                "ungültige Eingabe für Enum mood: »Verklemmung (Deadlock) entdeckt«",
                None,
            ),
            (
                r#"connection to server at "a", port 1 failed: FATAL:  password authentication failed for user "b""#,
                Some("28P01"),
            ),
            (
                r#"database "permission denied" does not exist"#,
                Some("3D000"),
            ),
            (
                "ungültige Eingabesyntax für Typ boolean: »the transaction of the work has ended«",
                Some("25P01"),
            ),
        ] {
            assert_eq!(sqlstate_of_message(said), code, "{said}");
        }
        let message = "Relation »lockapi.lease« existiert nicht";
        assert_eq!(sqlstate_of_message(message), None);
    }
}
