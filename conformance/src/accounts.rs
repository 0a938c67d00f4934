//! Rows of a program, written with optimistic locking in the way of its library.

use async_trait::async_trait;
use lockapi::versioned::{BoxError, Outcome, Retry};

/// Creates the table that [`Accounts`] are in; a balance of -1 is not written and one of -2 refused, by triggers.
pub const CREATE_ACCOUNTS: &str = "
    SELECT pg_advisory_xact_lock(-728, 2)::text;
    CREATE SCHEMA IF NOT EXISTS conformance;
    CREATE TABLE IF NOT EXISTS conformance.account (
        id int8 PRIMARY KEY,
        balance int8 NOT NULL,
        version int8 NOT NULL
    );
    CREATE OR REPLACE FUNCTION conformance.suppress() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RETURN NULL; END $$;
    CREATE OR REPLACE FUNCTION conformance.refuse() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE EXCEPTION 'not allowed'; END $$;
    DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'conformance.account'::regclass) THEN
            CREATE TRIGGER suppress BEFORE UPDATE ON conformance.account
                FOR EACH ROW WHEN (new.balance = -1) EXECUTE FUNCTION conformance.suppress();
            CREATE TRIGGER refuse BEFORE UPDATE ON conformance.account
                FOR EACH ROW WHEN (new.balance = -2) EXECUTE FUNCTION conformance.refuse();
        END IF;
    END $$;
    CREATE OR REPLACE FUNCTION conformance.run(sql text) RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN EXECUTE sql; RETURN 'done'; END $$;";

/// Accounts in the table `conformance.account`, on connections of the program.
#[async_trait]
pub trait Accounts: Send + Sync {
    /// Writes a balance, if the version is still the one that was seen.
    ///
    /// # Errors
    /// Those of the backend.
    async fn write(&self, id: i64, seen: i64, balance: i64) -> lockapi::Result<Outcome>;

    /// Moves an amount so many times from one account to another, each time in a transaction that is
    /// repeated on conflicts; refuses to where there is not enough. Answers how often it was moved.
    ///
    /// # Errors
    /// The last of a piece of work.
    async fn transfer(
        &self,
        retry: &Retry,
        (from, to): (i64, i64),
        amount: i64,
        times: u32,
    ) -> Result<u32, BoxError>;

    /// Runs a statement in a transaction that is repeated on conflicts. Answers how often it was
    /// begun, and what became of it.
    async fn execute(&self, retry: &Retry, sql: &'static str) -> (u32, Result<(), BoxError>);
}
