//! Migrations as a script that a person reads and runs.

use super::{MIGRATIONS, SETTINGS};
use crate::driver::without_comment;
use crate::key::internal_key;

/// The script that applies the migrations after a version, 0 for all, in one transaction, for psql or another client to
/// run as the owner of the schema; empty where there is none. It records them as `migrate()` does.
///
/// Of several that run at the same time one applies them, and the others fail with nothing done.
#[must_use]
pub fn plan(after: i64) -> String {
    let missing = MIGRATIONS.iter().filter(|it| it.version > after);
    let steps: Vec<String> = missing
        .map(|migration| {
            include_str!("plan_step.sql")
                .replace("{version}", &migration.version.to_string())
                .replace("{name}", migration.name)
                .replace("{checksum}", &migration.checksum())
                .replace("{sql}", migration.sql)
        })
        .collect();
    if steps.is_empty() {
        return String::new();
    }
    include_str!("plan.sql")
        .replace(
            "{settle}",
            &format!(
                "{};",
                without_comment(SETTINGS).trim_end().trim_end_matches(';')
            ),
        )
        .replace("{key}", &internal_key("lockapi", "migrate").to_string())
        .replace("{steps}", &steps.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_records_what_it_applies_and_nothing_else() {
        let last = MIGRATIONS.last().unwrap();
        let all = plan(0);
        for migration in MIGRATIONS {
            assert!(all.contains(migration.sql) && all.contains(&migration.checksum()));
        }
        let rest = plan(last.version - 1);
        assert!(rest.contains(last.sql) && !rest.contains(MIGRATIONS[0].sql));
        assert_eq!(plan(last.version), "");
        assert!(
            !all.contains("{version}") && !all.contains("{steps}"),
            "{all}"
        );
    }
}
