//! The disk is full.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::NODES;
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::scene::{Injected, Scene};

impl<D: Ledger> Scene<'_, D> {
    /// Fills the database's disk to the last byte, and frees it again, as often as there is time.
    pub(crate) async fn disk_fills_up(&mut self) -> Result<Injected, Failure> {
        self.start_nodes().await?;
        let Some(disk) = &self.disk else {
            return Ok(Injected::default());
        };
        let filler = disk.mounted(self.place, &self.database).join("filler");
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("disk", 0);
        let (mut faults, mut deaths) = (0, 0);
        while faults == 0 || Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.between(200, 600))).await;
            let full_until = Instant::now() + Duration::from_millis(rng.between(400, 1200));
            while Instant::now() < full_until {
                // The database gives space back now and then; it is not to get any.
                fill(&filler)?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            std::fs::remove_file(&filler)?;
            // MariaDB may abort when it cannot roll a transaction back for want of space.
            deaths += u32::from(self.place.heal().await?);
            faults += 1;
        }
        Ok(Injected {
            faults,
            nodes_hit: u64::from(NODES),
            note: (deaths > 0).then(|| format!("the server died of it {deaths} times, and was started again")),
            ..Injected::default()
        })
    }
}

fn fill(path: &Path) -> Result<(), Failure> {
    let mut file: File = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    for size in [256 * 1024, 4096] {
        let zeros = vec![0; size];
        loop {
            match file.write(&zeros) {
                Ok(written) if written > 0 => {}
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
