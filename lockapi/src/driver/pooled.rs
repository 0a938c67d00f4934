//! Connections that belong to a pool of the program.

use std::fmt;
use std::time::Duration;

use super::call::{Operation, Statement};
use super::connector::{Connection, Mode};
use super::script::Script;
use super::threaded::{BlockingConnection, BlockingListener, Inline};
use super::value::{Row, Rows, Type, Value};
use crate::blocking::block_on;
use crate::engine::probe::Marker;
use crate::error::Failure;
use crate::memory::ModelState;

const TERMINATE: Script = Script::Run(include_str!("terminate.sql"));

/// A connection of a pool, which is returned as it was when this is dropped.
///
/// # Guarantees
/// The next user gets a connection that holds no lock of this library, does not listen on its channel, has no
/// open transaction and has its original settings; or its session has ended. Behind a transaction-pooling
/// proxy the session belongs to other clients, and is not changed.
pub struct BorrowedConnection<N: BlockingListener> {
    connection: N,
    before: Option<Settings>,
    in_transaction: bool,
    listens: bool,
    /// Whether a probe that was given up has left its lock in the session.
    is_locked: bool,
}

impl<N: BlockingListener> BorrowedConnection<N> {
    /// Takes a connection; notes its settings.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn take(mut connection: N, mode: Mode) -> Result<Self, Failure> {
        let before = match mode {
            Mode::Direct => block_on(Inline(&mut connection).perform(&[SaveSettings]))?.pop(),
            Mode::Proxied => None,
        };
        Ok(Self {
            connection,
            before,
            in_transaction: false,
            listens: false,
            is_locked: false,
        })
    }

    fn give_back(&mut self) -> Result<(), Failure> {
        let mut connection = Inline(&mut self.connection);
        if self.in_transaction {
            // It was given up in the middle of it.
            block_on(connection.script(Script::Rollback))?;
        }
        if self.listens {
            block_on(connection.script(Script::Unlisten))?;
            // What came in before that waits in the driver for whoever asks next.
            while self.connection.next(Duration::ZERO)?.is_some() {}
        }
        let mut connection = Inline(&mut self.connection);
        if let Some(before) = self.before.take() {
            block_on(connection.perform(&[RestoreSettings(before)]))?;
        }
        Ok(())
    }
}

impl<N: BlockingListener> fmt::Debug for BorrowedConnection<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedConnection").finish_non_exhaustive()
    }
}

impl<N: BlockingListener> BlockingConnection for BorrowedConnection<N> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        let leaves_lock = Marker::leaves_lock(statement, &params);
        self.is_locked |= leaves_lock == Some(true);
        let outcome = self.connection.run(statement, params);
        self.is_locked &= !(leaves_lock == Some(false) && outcome.is_ok());
        outcome
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        let outcome = self.connection.script(script);
        match script {
            Script::Begin(_) => self.in_transaction = true,
            Script::Commit | Script::Rollback if outcome.is_ok() => self.in_transaction = false,
            Script::Listen => self.listens = true,
            _ => {}
        }
        outcome
    }
}

impl<N: BlockingListener> BlockingListener for BorrowedConnection<N> {
    fn next(&mut self, at_most: Duration) -> Result<Option<String>, Failure> {
        self.connection.next(at_most)
    }
}

impl<N: BlockingListener> Drop for BorrowedConnection<N> {
    fn drop(&mut self) {
        match self.give_back() {
            Ok(()) if !self.is_locked => {}
            // The session of another is left alone.
            Err(failure) if failure.is_of_another_session() => {}
            Ok(()) | Err(_) => {
                // It ends the session if that has not ended; the answer is an error in any case.
                let _ended = self.connection.script(TERMINATE);
            }
        }
    }
}

/// The settings of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    names: Vec<String>,
    values: Vec<String>,
    process: i64,
}

/// Reads the settings of a session; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct SaveSettings;

/// Puts the settings of a session back and releases its advisory locks; a batch of one.
#[derive(Clone, Debug)]
pub struct RestoreSettings(pub Settings);

impl Operation for SaveSettings {
    type Output = Settings;

    const STATEMENT: Statement = Statement {
        name: "driver.save_settings",
        sql: include_str!("save_settings.sql"),
        params: &[],
        columns: &[Type::Texts, Type::Texts, Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Settings>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                Ok(Settings {
                    names: row.texts(0)?,
                    values: row.texts(1)?,
                    process: row.int(2)?,
                })
            })
            .collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        // Settings have no meaning in memory.
        let none = || Value::Texts(Vec::new());
        Some(vec![Row(vec![none(), none(), Value::Int(0)])])
    }
}

impl Operation for RestoreSettings {
    /// How many settings were put back.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "driver.restore_settings",
        sql: include_str!("restore_settings.sql"),
        params: &[Type::Texts, Type::Texts, Type::Int],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|Self(former)| {
                [
                    Value::Texts(former.names.clone()),
                    Value::Texts(former.values.clone()),
                    Value::Int(former.process),
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        model.release_all(session);
        Some(vec![Row(vec![Value::Int(0)])])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::ErrorKind;
    use crate::engine::probe::Lock;

    const BEGIN: Script = Script::Begin("BEGIN");

    /// Records what it runs; has no settings; fails what it is asked to.
    struct Recording {
        ran: Arc<Mutex<Vec<&'static str>>>,
        fails: &'static str,
    }

    impl Recording {
        fn note(&self, what: &'static str) -> Result<(), Failure> {
            self.ran.lock().unwrap().push(what);
            if what == self.fails {
                return Err(Failure::refused(None, "it is asked to fail"));
            }
            Ok(())
        }
    }

    impl BlockingConnection for Recording {
        fn run(&mut self, statement: &'static Statement, _: Vec<Value>) -> Result<Rows, Failure> {
            self.note(statement.name)?;
            let none = || Value::Texts(Vec::new());
            Ok(vec![Row(match statement.name {
                "driver.save_settings" => vec![none(), none(), Value::Int(0)],
                _ => vec![Value::Int(0)],
            })])
        }

        fn script(&mut self, script: Script) -> Result<(), Failure> {
            self.note(script.sql())
        }
    }

    impl BlockingListener for Recording {
        fn next(&mut self, _: Duration) -> Result<Option<String>, Failure> {
            self.note("next")?;
            Ok(None)
        }
    }

    fn give_back(mode: Mode, fails: &'static str, scripts: &[Script]) -> Vec<&'static str> {
        let ran = Arc::new(Mutex::new(Vec::new()));
        let noting = Recording {
            ran: Arc::clone(&ran),
            fails,
        };
        let mut pooled = BorrowedConnection::take(noting, mode).unwrap();
        for script in scripts {
            let ran = pooled.script(*script);
            assert_eq!(ran.is_err(), script.sql() == fails);
        }
        drop(pooled);
        let ran = ran.lock().unwrap();
        ran[usize::from(mode == Mode::Direct) + scripts.len()..].to_vec()
    }

    #[test]
    fn settings_and_locks_are_put_back() {
        assert_eq!(
            give_back(Mode::Direct, "", &[]),
            ["driver.restore_settings"]
        );
        let ended = give_back(Mode::Direct, "", &[BEGIN, Script::Commit]);
        assert_eq!(ended, ["driver.restore_settings"]);
    }

    #[test]
    fn a_transaction_that_was_given_up_is_rolled_back() {
        let ran = give_back(Mode::Direct, "", &[BEGIN]);
        assert_eq!(ran, [Script::Rollback.sql(), "driver.restore_settings"]);
        let ran = give_back(Mode::Direct, Script::Commit.sql(), &[BEGIN, Script::Commit]);
        assert_eq!(ran, [Script::Rollback.sql(), "driver.restore_settings"]);
        let ran = give_back(Mode::Proxied, "", &[BEGIN]);
        assert_eq!(ran, [Script::Rollback.sql()]);
    }

    #[test]
    fn a_session_that_listened_no_longer_does() {
        let ran = give_back(Mode::Direct, "", &[Script::Listen]);
        assert_eq!(
            ran,
            [Script::Unlisten.sql(), "next", "driver.restore_settings"]
        );
        let ran = give_back(Mode::Direct, Script::Unlisten.sql(), &[Script::Listen]);
        assert_eq!(ran, [Script::Unlisten.sql(), TERMINATE.sql()]);
    }

    #[test]
    fn a_session_that_is_not_as_it_was_ends() {
        let ran = give_back(Mode::Direct, "driver.restore_settings", &[]);
        assert_eq!(ran, ["driver.restore_settings", TERMINATE.sql()]);
    }

    /// A probe that is given up before it has given its lock back ends the session that has it.
    #[test]
    fn a_session_with_the_lock_of_a_probe_ends() {
        let ended = |locks: &[Lock]| {
            let ran = Arc::new(Mutex::new(Vec::new()));
            let noting = Recording {
                ran: Arc::clone(&ran),
                fails: "",
            };
            let mut pooled = BorrowedConnection::take(noting, Mode::Proxied).unwrap();
            for lock in locks {
                let params = Marker::params(&[Marker {
                    marker: String::new(),
                    lock: *lock,
                }]);
                pooled.run(&Marker::STATEMENT, params).unwrap();
            }
            drop(pooled);
            let ran = ran.lock().unwrap();
            ran.last() == Some(&TERMINATE.sql())
        };
        assert!(ended(&[Lock::Session(1)]));
        assert!(!ended(&[Lock::Session(1), Lock::GiveBack(1)]));
        assert!(!ended(&[Lock::Transaction(1), Lock::None]));
    }

    #[test]
    fn the_session_of_another_is_left_alone() {
        assert!(give_back(Mode::Proxied, "", &[]).is_empty());
    }

    #[test]
    fn a_refusal_without_a_code_had_no_effect() {
        let failure = Failure::refused(None, "no");
        assert_eq!(failure.kind(), ErrorKind::Unavailable);
    }
}
