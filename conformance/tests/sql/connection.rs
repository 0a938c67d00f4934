//! A connection of any of the libraries, as the driver sees it.

use diesel::Connection as _;
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use lockapi::Failure;
use lockapi::driver::{BoxFuture, Call, Connection, Inline, Rows, Script, Transaction};
use lockapi_diesel::Borrowed as OnDiesel;
use lockapi_diesel_async::Borrowed as OnDieselAsync;
use lockapi_postgres::Borrowed as OnSync;
use lockapi_sqlx::{Borrowed as OnSqlx, BorrowedOrm};
use postgres::{Client, NoTls};
use sea_orm::{ConnectOptions, Database, DatabaseConnection, TransactionTrait};
use sqlx::Connection as _;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Library {
    Sqlx,
    Diesel,
    Sync,
    DieselAsync,
    SeaOrm,
}

impl Library {
    /// Those whose own connections differ: those of diesel-async are tokio-postgres, and SeaORM is on sqlx.
    pub(crate) const ALL: [Self; 3] = [Self::Sqlx, Self::Diesel, Self::Sync];
}

pub(crate) enum LibraryConnection {
    Sqlx(Box<sqlx::PgConnection>),
    Diesel(Box<diesel::PgConnection>),
    Sync(Box<Client>),
    DieselAsync(Box<AsyncPgConnection>),
    /// A pool of one connection.
    SeaOrm(DatabaseConnection),
}

impl LibraryConnection {
    /// Connects; async libraries need to be within the context of a runtime.
    pub(crate) fn connect(library: Library, url: &str) -> Self {
        match library {
            Library::Sqlx => {
                let connecting = sqlx::PgConnection::connect(url);
                let connection = pollster::block_on(connecting).expect("a connection");
                Self::Sqlx(Box::new(connection))
            }
            Library::Diesel => {
                let connection = diesel::PgConnection::establish(url).expect("a connection");
                Self::Diesel(Box::new(connection))
            }
            Library::Sync => {
                let client = Client::connect(url, NoTls).expect("a connection");
                Self::Sync(Box::new(client))
            }
            Library::DieselAsync => {
                let connecting = AsyncPgConnection::establish(url);
                let connection = pollster::block_on(connecting).expect("a connection");
                Self::DieselAsync(Box::new(connection))
            }
            Library::SeaOrm => {
                let mut options = ConnectOptions::new(url);
                options.max_connections(1).sqlx_logging(false);
                let connecting = Database::connect(options);
                Self::SeaOrm(pollster::block_on(connecting).expect("a connection"))
            }
        }
    }
}

impl Connection for LibraryConnection {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        match self {
            Self::Sqlx(connection) => OnSqlx(connection).run(call).await,
            Self::Diesel(connection) => Inline(OnDiesel(connection)).run(call).await,
            Self::Sync(client) => Inline(OnSync(&mut **client)).run(call).await,
            Self::DieselAsync(connection) => OnDieselAsync(connection).run(call).await,
            Self::SeaOrm(pool) => {
                let transaction = pool.begin().await.expect("begun");
                let rows = BorrowedOrm(&transaction).run(call).await;
                let ended = match &rows {
                    Ok(_) => transaction.commit().await,
                    Err(_) => transaction.rollback().await,
                };
                ended.expect("ended");
                rows
            }
        }
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        match self {
            Self::Sqlx(connection) => OnSqlx(connection).script(script).await,
            Self::Diesel(connection) => Inline(OnDiesel(connection)).script(script).await,
            Self::Sync(client) => Inline(OnSync(&mut **client)).script(script).await,
            Self::DieselAsync(connection) => OnDieselAsync(connection).script(script).await,
            Self::SeaOrm(pool) => {
                let transaction = pool.begin().await.expect("begun");
                let done = BorrowedOrm(&transaction).script(script).await;
                transaction.commit().await.expect("committed");
                done
            }
        }
    }
}

impl Transaction<Library> for LibraryConnection {
    type Connection<'c> = &'c mut Self;

    fn connection(&mut self) -> &mut Self {
        self
    }
}

impl lockapi::driver::Library for Library {
    type Outcome<'c, T: Send + 'c> = BoxFuture<'c, T>;

    fn outcome<'c, T: Send + 'c>(work: BoxFuture<'c, T>) -> BoxFuture<'c, T> {
        work
    }
}
