//! Pausing a queue, and one name of its jobs.

use super::handle::Handle;
use crate::error::Result;
use crate::key::check_name;
use crate::queue::{Pause, SetNamePaused, SetPaused};

impl Handle {
    pub(super) async fn set_paused(&self, pause: Option<Pause>) -> Result<()> {
        let time = pause.map_or(Ok(0), Pause::micros);
        let set = SetPaused {
            name: self.name.clone(),
            paused: pause.is_some(),
            time: time.map_err(self.failed("set_paused"))?,
            topic: self.number,
        };
        self.call(set).await?;
        self.topic.bump();
        Ok(())
    }

    pub(super) async fn set_name_paused(&self, name: &str, pause: Option<Pause>) -> Result<()> {
        let failed = self.failed("set_name_paused");
        check_name("name", name, 1).map_err(&failed)?;
        let time = pause.map_or(Ok(0), Pause::micros);
        let set = SetNamePaused {
            name: self.name.clone(),
            job: name.to_owned(),
            paused: pause.is_some(),
            time: time.map_err(&failed)?,
            topic: self.number,
        };
        self.call(set).await?;
        self.topic.bump();
        Ok(())
    }
}
