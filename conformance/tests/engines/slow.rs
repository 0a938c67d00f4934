//! A network that takes its time.

use std::time::Duration;

use lockapi::Failure;
use lockapi::driver::{BackgroundTask, Call, Connection, Connector, Listener, Mode, Rows, Script};
use tokio::time::sleep;

/// Connects to a server that is far away.
pub(crate) struct Slow<C> {
    real: C,
    round_trip: Duration,
}

impl<C> Slow<C> {
    pub(crate) fn new(real: C, round_trip: Duration) -> Self {
        Self { real, round_trip }
    }
}

impl<C: Connector> Connector for Slow<C> {
    type Connection = SlowConnection<C::Connection>;
    type Listener = SlowConnection<C::Listener>;

    async fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let round_trip = self.round_trip;
        sleep(round_trip).await;
        let real = self.real.connect(mode).await?;
        Ok(SlowConnection { real, round_trip })
    }

    async fn listener(&self) -> Result<Self::Listener, Failure> {
        let round_trip = self.round_trip;
        sleep(round_trip).await;
        let real = self.real.listener().await?;
        Ok(SlowConnection { real, round_trip })
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.real.spawn(name, task);
    }
}

pub(crate) struct SlowConnection<N> {
    real: N,
    round_trip: Duration,
}

impl<N: Connection> Connection for SlowConnection<N> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        sleep(self.round_trip).await;
        self.real.run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        sleep(self.round_trip).await;
        self.real.script(script).await
    }
}

impl<N: Listener> Listener for SlowConnection<N> {
    async fn next(&mut self) -> Result<String, Failure> {
        self.real.next().await
    }
}
