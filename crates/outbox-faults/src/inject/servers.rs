//! The server goes away, or throws everybody out.

use std::time::{Duration, Instant};

use super::NODES;
use crate::failure::Failure;
use crate::fault::{Fault, Kind};
use crate::ledger::Ledger;
use crate::scene::{Injected, Scene};

impl<D: Ledger> Scene<'_, D> {
    /// Stops or kills the server, and starts it again, as often as there is time.
    pub(crate) async fn server_goes_down(&mut self) -> Result<Injected, Failure> {
        self.start_nodes().await?;
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("server", 0);
        let mut faults = 0;
        while faults == 0 || Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.between(300, 900))).await;
            let away = Duration::from_millis(rng.between(0, 400));
            let Some(server) = &mut self.place.server else {
                break;
            };
            if self.plan.fault == Fault::DatabaseKill {
                server.kill().await?;
            } else {
                server.stop().await?;
            }
            tokio::time::sleep(away).await;
            server.start().await?;
            faults += 1;
        }
        Ok(Injected {
            faults,
            nodes_hit: u64::from(NODES),
            ..Injected::default()
        })
    }

    /// Terminates every connection to the database but our own, twice a second.
    pub(crate) async fn connections_are_killed(&mut self) -> Result<Injected, Failure> {
        self.start_nodes().await?;
        let until = Instant::now() + self.plan.time;
        let mut rng = self.plan.rng("connections", 0);
        let mut faults = 0;
        let database = self.database.clone();
        while faults == 0 || Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.between(450, 550))).await;
            let sql = match self.place.kind {
                Kind::MariaDb => format!(
                    "begin not atomic
                       declare done int default 0;
                       declare victim bigint;
                       declare victims cursor for
                         select id from information_schema.processlist where db = '{database}' and id <> connection_id();
                       declare continue handler for not found set done = 1;
                       declare continue handler for 1094 begin end;
                       open victims;
                       walk: loop
                         fetch victims into victim;
                         if done then leave walk; end if;
                         kill victim;
                       end loop;
                     end"
                ),
                _ => format!(
                    "select pg_terminate_backend(pid) from pg_stat_activity
                     where datname = '{database}' and pid <> pg_backend_pid()"
                ),
            };
            self.place.execute(sql).await?;
            faults += 1;
        }
        Ok(Injected {
            faults,
            nodes_hit: u64::from(NODES),
            ..Injected::default()
        })
    }
}
