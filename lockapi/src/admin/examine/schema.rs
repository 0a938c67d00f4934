//! What this version makes, and what has become of it.

use super::{Fault, Object};
use crate::migrate::MIGRATIONS;

/// What there is in the schema after all migrations, a line each: kind, name, and what it is made of, divided by tabs. A
/// test of the console compares it with a fresh database.
pub const EXPECTED: &str = include_str!("schema.txt");

pub(super) fn expected() -> impl Iterator<Item = Object> {
    EXPECTED.lines().map(|line| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Object {
            kind: next(),
            name: next(),
            made_of: next(),
        }
    })
}

/// What is missing or was changed, with the statement that mends it. What somebody has added is no fault, except an index of
/// a table here; of these "unread" are those that nobody reads.
pub(super) fn drift(objects: &[Object], unread: &[Fault]) -> Vec<Fault> {
    let lost = |name: &str| {
        let is_it = |object: &&Object| object.kind == "table" && object.name == name;
        !objects.iter().any(|object| is_it(&object))
    };
    let mut faults = Vec::new();
    for object in expected() {
        let same = |it: &&Object| it.kind == object.kind && it.name == object.name;
        let subject = format!("{} {}", object.kind, object.name);
        match objects.iter().find(same) {
            // Of a table that is missing, that is all there is to say.
            None if object.kind == "column"
                && object
                    .name
                    .split_once('.')
                    .is_some_and(|(table, _)| lost(table)) => {}
            None if object.kind == "index" && table_of(&object.made_of).is_some_and(lost) => {}
            None if object.kind == "index" => faults.push(Fault {
                mend: Some(format!("{};", object.made_of)),
                ..Fault::new("missing_index", &object.name, "it is not there")
            }),
            None => faults.push(Fault {
                mend: mend(&object),
                ..Fault::new("missing_object", &subject, "it is not there")
            }),
            Some(found) if found.made_of == object.made_of => {}
            Some(found) if found.made_of == format!("{} (not valid)", object.made_of) => {
                faults.push(Fault::new("invalid_index", &object.name, "it is not valid"));
            }
            Some(found) => {
                let detail = match object.kind.as_str() {
                    "function" => "its text is another".to_owned(),
                    _ => format!(
                        "it is {}, and was made as {}",
                        found.made_of, object.made_of
                    ),
                };
                faults.push(Fault {
                    mend: mend(&object),
                    ..Fault::new("changed_object", &subject, &detail)
                });
            }
        }
    }
    faults.extend(other_indexes(objects, unread));
    faults
}

fn other_indexes(objects: &[Object], unread: &[Fault]) -> Vec<Fault> {
    let expected: Vec<Object> = expected().collect();
    let is_expected = |kind: &str, name: &str| {
        let mut like = expected.iter();
        like.any(|object| object.kind == kind && object.name == name)
    };
    let is_other = |object: &&Object| {
        object.kind == "index"
            && !is_expected("index", &object.name)
            && table_of(&object.made_of).is_some_and(|table| is_expected("table", table))
    };
    let fault = |object: &Object| {
        let uses = unread.iter().find(|it| it.subject == object.name);
        let uses = uses.map(|it| format!("; {}", it.detail));
        let detail = format!(
            "this version makes none such: {}{}",
            object.made_of,
            uses.unwrap_or_default()
        );
        Fault::new("other_index", &object.name, &detail)
    };
    objects.iter().filter(is_other).map(fault).collect()
}

/// The table in the text of an index.
fn table_of(index: &str) -> Option<&str> {
    let (_, rest) = index.split_once(" ON lockapi.")?;
    rest.split_once(' ').map(|(table, _)| table)
}

/// The statement of a migration that made a function or a view; a later one counts.
fn mend(object: &Object) -> Option<String> {
    let (head, end) = match object.kind.as_str() {
        "function" => {
            let (name, _) = object.name.split_once('(')?;
            (format!("FUNCTION lockapi.{name}("), "$$;")
        }
        "view" => (format!("VIEW lockapi.{} AS", object.name), ";\n"),
        _ => return None,
    };
    let heads = ["CREATE ", "CREATE OR REPLACE "].map(|create| format!("{create}{head}"));
    let start = |text: &str| heads.iter().filter_map(|head| text.rfind(head)).max();
    let mut texts = MIGRATIONS.iter().rev().map(|migration| migration.sql);
    let (start, text) = texts.find_map(|text| Some((start(text)?, text)))?;
    let rest = &text[start + text[start..].find(&head)?..];
    let statement = &rest[..rest.find(end)? + end.len()];
    Some(format!("CREATE OR REPLACE {}", statement.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_it_was_made_is_no_drift() {
        let mut objects: Vec<Object> = expected().collect();
        objects.push(Object {
            kind: "table".to_owned(),
            name: "of_somebody".to_owned(),
            made_of: String::new(),
        });
        assert_eq!(drift(&objects, &[]), []);
    }

    #[test]
    fn all_that_can_be_made_again_is() {
        for object in expected() {
            let made = mend(&object);
            if matches!(object.kind.as_str(), "function" | "view") {
                let made = made.unwrap_or_else(|| panic!("{object:?}"));
                assert!(
                    made.starts_with("CREATE OR REPLACE ") && made.ends_with(';'),
                    "{made}"
                );
                assert_eq!(made.matches("CREATE OR REPLACE").count(), 1, "{made}");
            } else {
                assert_eq!(made, None);
            }
        }
    }

    #[test]
    fn what_was_replaced_is_made_again_as_it_is_now() {
        for (name, has) in [
            ("enter_epoch()", "lockapi.since_crash"),
            ("task_view", "coalesce(due_at"),
            ("lease_view", "held_until IS NULL"),
        ] {
            let mut objects = expected();
            let object = objects.find(|object| object.name == name).unwrap();
            let made = mend(&object).unwrap();
            assert!(made.contains(has), "{made}");
        }
    }

    #[test]
    fn a_table_that_is_missing_is_one_fault() {
        let rest = expected().filter(|object| {
            object.name != "queue"
                && !object.name.starts_with("queue.")
                && table_of(&object.made_of) != Some("queue")
        });
        let faults = drift(&rest.collect::<Vec<_>>(), &[]);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].subject, "table queue");
    }
}
