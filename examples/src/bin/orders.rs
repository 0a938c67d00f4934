//! Orders and their confirmations, on diesel-async and deadpool: an order is stored with the job that confirms it, and a
//! confirmation with the end of its job: all of it or nothing, whichever process dies.
//!
//! `DATABASE_URL=postgres://user@host/database cargo run -p lockapi-examples --bin orders -- ada grace`

use std::env;

use diesel::sql_query;
use diesel::sql_types::Text;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use lockapi::queue::{Claim, Job};
use tokio_postgres::NoTls;

type Problem = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let url = env::var("DATABASE_URL")?;
    let backend = lockapi_diesel_async::connect_url(&url, NoTls).await?;
    backend.migrate().await?;
    let pool =
        Pool::builder(AsyncDieselConnectionManager::<AsyncPgConnection>::new(url)).build()?;
    let mut conn = pool.get().await?;
    // Two that create a table at the same time may fail.
    let guard = backend.mutex("tables")?.lock().await?;
    conn.batch_execute(
        "CREATE TABLE IF NOT EXISTS customer_order (id int8 GENERATED ALWAYS AS IDENTITY, customer text NOT NULL);
         CREATE TABLE IF NOT EXISTS confirmation (customer text NOT NULL)",
    )
    .await?;
    guard.unlock().await?;

    let queue = backend.queue("confirmations")?;
    for customer in env::args().skip(1) {
        let job = Job::new("confirm", &customer)?;
        conn.transaction::<_, Problem, _>(async |conn| {
            let insert = sql_query("INSERT INTO customer_order (customer) VALUES ($1)");
            insert.bind::<Text, _>(&customer).execute(conn).await?;
            queue.push_in(conn, &[job]).await?;
            Ok(())
        })
        .await?;
    }

    // Those of all processes, each delivered to one at a time.
    let mut confirmed = 0;
    loop {
        let deliveries = queue.claim(&Claim::new(10)).await?;
        if deliveries.is_empty() {
            break;
        }
        for delivery in deliveries {
            let customer: String = delivery.decode()?;
            conn.transaction::<_, Problem, _>(async |conn| {
                let insert = sql_query("INSERT INTO confirmation VALUES ($1)");
                insert.bind::<Text, _>(customer).execute(conn).await?;
                // `Lost` if it was delivered again meanwhile: rolls back.
                delivery.ack_in(conn).await?;
                Ok(())
            })
            .await?;
            confirmed += 1;
        }
    }
    println!("{confirmed} confirmed");
    backend.close().await?;
    Ok(())
}
