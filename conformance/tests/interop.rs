//! Every ordered pair of backends on one database.

mod drivers;

use std::sync::Arc;

use lockapi_conformance::{Driver, Postgres};

fn main() {
    let drivers: [Arc<dyn Driver>; 5] = [
        Arc::new(drivers::sqlx::Sqlx),
        Arc::new(drivers::diesel::Diesel),
        Arc::new(drivers::sync::Sync),
        Arc::new(drivers::tokio_postgres::TokioPostgres),
        Arc::new(drivers::diesel_async::DieselAsync),
    ];
    lockapi_conformance::run_pairs(&Postgres::pairs(&drivers));
}
