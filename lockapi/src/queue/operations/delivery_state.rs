//! The state of deliveries.

use std::collections::HashMap;

use crate::driver::columns::ints;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{DeliveryState, Ticket};

/// Checks whether a delivery is still the latest of its job, or has completed it.
#[derive(Clone, Copy, Debug)]
pub struct ReadDeliveryState {
    /// The delivery.
    pub ticket: Ticket,
}

impl Operation for ReadDeliveryState {
    type Output = DeliveryState;

    const STATEMENT: Statement = Statement {
        name: "queue.delivery_state",
        sql: include_str!("delivery_state.sql"),
        params: &[Type::Ints],
        columns: &[Type::Int, Type::Int, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        vec![ints(batch, |one| one.ticket.id)]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<DeliveryState>, Failure> {
        let mut tokens = HashMap::with_capacity(batch.len());
        for mut row in rows {
            tokens.insert(row.int(0)?, (row.maybe_int(1)?, row.bool(2)?));
        }
        let delivery_state = |one: &Self| match tokens.get(&one.ticket.id) {
            None => DeliveryState::Ended,
            Some((Some(token), ended)) if *token == one.ticket.token => {
                if *ended {
                    DeliveryState::Done
                } else {
                    DeliveryState::Current
                }
            }
            Some(_) => DeliveryState::Superseded,
        };
        Ok(batch.iter().map(delivery_state).collect())
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let rows = batch.iter().filter_map(|one| {
            let (token, ended) = model.jobs.delivery_state(one.ticket.id)?;
            let token = token.map_or(Value::Null(Type::Int), Value::Int);
            Some(Row(vec![
                Value::Int(one.ticket.id),
                token,
                Value::Bool(ended),
            ]))
        });
        Some(rows.collect())
    }
}
