//! What a versioned update says of mistakes: the same on each library.

use diesel::Connection as _;
use diesel::pg::Pg;
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::{BigInt, Text};
use lockapi::versioned::{Outcome, Table};
use lockapi::{ErrorKind, Result};
use postgres::types::Type;
use postgres::{Client, NoTls};
use sqlx::Connection as _;
use sqlx::encode::{Encode, IsNull};
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo};

/// A number that cannot be encoded.
#[derive(Clone, Copy, Debug)]
struct Unencodable;

impl ToSql<BigInt, Pg> for Unencodable {
    fn to_sql<'b>(&'b self, _: &mut Output<'b, '_, Pg>) -> serialize::Result {
        Err("no number".into())
    }
}

impl sqlx::Type<sqlx::Postgres> for Unencodable {
    fn type_info() -> PgTypeInfo {
        <i64 as sqlx::Type<sqlx::Postgres>>::type_info()
    }
}

impl Encode<'_, sqlx::Postgres> for Unencodable {
    fn encode_by_ref(
        &self,
        _: &mut PgArgumentBuffer,
    ) -> std::result::Result<IsNull, sqlx::error::BoxDynError> {
        Err("no number".into())
    }
}

/// The same updates on each library.
struct Connections {
    sqlx: sqlx::PgConnection,
    diesel: diesel::PgConnection,
    postgres: Client,
}

impl Connections {
    fn all(&mut self, table: &Table, column: &str, value: &str) -> [Result<Outcome>; 3] {
        let update = lockapi_sqlx::VersionedUpdate::of(table);
        let update = update.key(7_i64).set(column, value);
        let on_sqlx = pollster::block_on(update.run(&mut self.sqlx, 1));
        let update = lockapi_diesel::VersionedUpdate::of(table);
        let update = update.key::<BigInt, _>(7_i64).set::<Text, _>(column, value);
        let on_diesel = update.run(&mut self.diesel, 1);
        let update = lockapi_postgres::VersionedUpdate::of(table);
        let update = update.key(7_i64, Type::INT8).set(column, value, Type::TEXT);
        [on_sqlx, on_diesel, update.run(&mut self.postgres, 1)]
    }

    fn all_unencodable(&mut self, table: &Table) -> [Result<Outcome>; 3] {
        let update = lockapi_sqlx::VersionedUpdate::of(table).key(Unencodable);
        let on_sqlx = pollster::block_on(update.run(&mut self.sqlx, 1));
        let update = lockapi_diesel::VersionedUpdate::of(table);
        let update = update.key::<BigInt, _>(Unencodable);
        let on_diesel = update.run(&mut self.diesel, 1);
        let update = lockapi_postgres::VersionedUpdate::of(table).key(7_i32, Type::INT8);
        [on_sqlx, on_diesel, update.run(&mut self.postgres, 1)]
    }
}

fn refused(outcomes: [Result<Outcome>; 3], kind: ErrorKind, words: &str) {
    for outcome in outcomes {
        let error = outcome.expect_err("a mistake");
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(words) && !text.contains("migrate()"),
            "{text}"
        );
    }
}

#[test]
fn mistakes_are_told_in_the_words_of_the_server() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let mut on = Connections {
        sqlx: pollster::block_on(sqlx::PgConnection::connect(&url)).expect("a connection"),
        diesel: diesel::PgConnection::establish(&url).expect("a connection"),
        postgres: Client::connect(&url, NoTls).expect("a connection"),
    };
    let name = format!("mistakes_{:016x}", fastrand::u64(..));
    let create = format!(
        "CREATE TABLE {name} (id int8 PRIMARY KEY, note text CHECK (note <> 'no'), version int8 NOT NULL);
         INSERT INTO {name} VALUES (7, 'yes', 1)"
    );
    on.postgres.batch_execute(&create).expect("created");
    let table = Table::new(&name, &["id"], "version").expect("a table");
    refused(
        on.all_unencodable(&table),
        ErrorKind::Invalid,
        "cannot be encoded",
    );
    refused(
        on.all(&table, "note", "no"),
        ErrorKind::Invalid,
        "check constraint",
    );
    refused(
        on.all(&table, "nota", "yes"),
        ErrorKind::Unsupported,
        "nota",
    );
    let unversioned = Table::new(&name, &["id"], "versio").expect("a table");
    refused(
        on.all(&unversioned, "note", "yes"),
        ErrorKind::Unsupported,
        "versio",
    );
    let missing = Table::new("no_such_table", &["id"], "version").expect("a table");
    refused(
        on.all(&missing, "note", "yes"),
        ErrorKind::Unsupported,
        "no_such_table",
    );
    let [first, second, third] = on.all(&table, "note", "again");
    let stale = Outcome::Stale { current: 2 };
    assert_eq!(
        first.expect("the connection is usable"),
        Outcome::Updated(2)
    );
    assert_eq!(second.expect("the connection is usable"), stale);
    assert_eq!(third.expect("the connection is usable"), stale);
    let drop = format!("DROP TABLE {name}");
    on.postgres.batch_execute(&drop).expect("dropped");
}
