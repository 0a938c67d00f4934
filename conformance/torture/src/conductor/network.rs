//! Faults of the network, and of the pooler in it.

use std::sync::{MutexGuard, PoisonError};
use std::thread;

use postgres::SimpleQueryMessage;

use super::{Conductor, Draw, Effect, seconds};
use crate::Result;
use crate::plan::Fault;
use crate::pooler::Pooler;
use crate::proxy::Weather;
use crate::wire::sent_again;

impl Conductor<'_> {
    pub(super) fn weather(&self, fault: Fault, draw: &mut Draw) -> Effect {
        let weather = match fault {
            Fault::CutBefore => Weather::CutBefore,
            Fault::CutAfter => Weather::CutAfter,
            Fault::Stall => Weather::Stall,
            Fault::Delay => Weather::Delay,
            Fault::Dribble => Weather::Dribble,
            _ => Weather::HalfOpen,
        };
        let place = self.place(draw);
        let proxy = &self.crew.places[place].proxy;
        proxy.set(weather);
        thread::sleep(draw.time);
        let hits = proxy.set(Weather::Fine);
        let what = match fault {
            Fault::CutBefore | Fault::CutAfter => "connections",
            Fault::Stall | Fault::HalfOpen => "messages that waited",
            _ => "messages",
        };
        Effect::new(
            hits,
            format!(
                "{hits} {what} of {} in {}",
                self.name(place),
                seconds(draw.time)
            ),
        )
        .of(place)
    }

    /// Lets all packets of a program vanish, on both sides.
    pub(super) fn unplug(&self, draw: &mut Draw) -> Result<Effect> {
        let mut places = self.crew.places.iter().zip(0..);
        let wired = places.find_map(|(place, number)| Some((place.wire.as_ref()?, number)));
        let (wire, place) = wired.ok_or("no program has a network of its own")?;
        let pid = self.crew.pid(place).ok_or("its program is not there")?;
        let before = sent_again(pid)?;
        wire.pull_out()?;
        thread::sleep(draw.time);
        let after = sent_again(pid);
        wire.plug_in()?;
        // A program that was killed meanwhile waits no more.
        let sent = after?.saturating_sub(before);
        Ok(Effect::new(
            sent,
            format!(
                "{} for {}, which sent {sent} packets again",
                self.name(place),
                seconds(draw.time)
            ),
        )
        .of(place))
    }

    fn pooler(&self) -> Result<MutexGuard<'_, Pooler>> {
        let pooler = self.pooler.as_ref().ok_or("there is no pooler")?;
        Ok(pooler.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the pooler, if there is one, open its sessions anew.
    pub(crate) fn renew_pooled_sessions(&self) -> Result<()> {
        match &self.pooler {
            Some(_) => self.pooler()?.command("RECONNECT"),
            None => Ok(()),
        }
    }

    /// Ends the pooler, if there is one.
    pub(crate) fn close_pooler(&self) -> Result<()> {
        match &self.pooler {
            Some(_) => self.pooler()?.kill(),
            None => Ok(()),
        }
    }

    pub(super) fn pause_pooler(&self, draw: &mut Draw) -> Result<Effect> {
        let pooler = self.pooler()?;
        let paused = pooler.command("PAUSE");
        thread::sleep(draw.time);
        let waiting = pooler.count("SHOW POOLS", "cl_waiting");
        // Also where it was not paused for certain.
        let resumed = pooler.command("RESUME");
        paused?;
        let waiting = waiting?;
        // One that is not paused any more was restarted.
        drop(resumed);
        Ok(Effect::new(
            waiting,
            format!("{waiting} clients waited for {}", seconds(draw.time)),
        ))
    }

    pub(super) fn restart_pooler(&self, draw: &mut Draw) -> Result<Effect> {
        let mut pooler = self.pooler()?;
        // Whoever asks is one of them.
        let clients = pooler.count("SHOW CLIENTS", "type")?.saturating_sub(1);
        pooler.kill()?;
        thread::sleep(draw.time / 2);
        pooler.launch()?;
        Ok(Effect::new(
            clients,
            format!("{clients} clients, away for {}", seconds(draw.time / 2)),
        ))
    }
}

impl Pooler {
    /// The sum of a column of numbers, or the number of rows if it has others.
    fn count(&self, command: &str, column: &str) -> Result<u64> {
        let rows = self.rows(command)?;
        let numbers = rows.iter().filter_map(|row| match row {
            SimpleQueryMessage::Row(row) => row.get(column),
            _ => None,
        });
        Ok(numbers.map(|text| text.parse().unwrap_or(1)).sum())
    }
}
