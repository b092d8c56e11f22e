//! A node of the demo: a process of its own, with producers, hot path and poller.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outbox::{AnyPool, Builder, Outbox, TableName};
use sqlx::Pool;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::database::ShopDatabase;
use super::log::{Fact, Log};
use super::shop::{self, Producer};
use crate::any_pool::with_pool;
use crate::failure::Failure;
use crate::target::Url;

/// Orders of different producers have different numbers.
const NUMBERS_PER_PRODUCER: i64 = 1_000_000_000;

/// What the demo tells each of its nodes. Not for people.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Node {
    #[arg(long, env = "OUTBOX_DATABASE_URL", hide_env_values = true)]
    database: Url,
    /// The event table.
    #[arg(long)]
    table: TableName,
    /// The shop's table.
    #[arg(long)]
    orders: String,
    /// Where to write what it does.
    #[arg(long)]
    log: PathBuf,
    /// Which one it is, from zero: the first has the poison and the panic.
    #[arg(long)]
    node: i64,
    /// Nobody else delivers.
    #[arg(long)]
    alone: bool,
    /// Every customer's events in order.
    #[arg(long)]
    ordered: bool,
    #[arg(long)]
    producers: i64,
    #[arg(long)]
    seconds: u64,
    /// Between two orders of a producer.
    #[arg(long)]
    every_us: u64,
    #[arg(long)]
    lease_ms: u64,
}

impl Node {
    /// Produces for some seconds, and delivers until standard input ends: also if the parent dies.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        keep_quiet_about_the_panic();
        let pool = AnyPool::connect(self.database.expose()).await?;
        with_pool!(&pool, pool => self.run_on(pool).await)
    }

    async fn run_on<D: ShopDatabase>(self, pool: &Pool<D>) -> Result<(), Failure> {
        let log = Arc::new(Log::create(&self.log)?);
        let outbox = if self.ordered {
            self.build(Outbox::ordered(pool), &log).await?
        } else if self.alone {
            self.build(Outbox::single_node(pool), &log).await?
        } else {
            self.build(Outbox::multi_node(pool), &log).await?
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = stop.send(());
        });

        log.write(&Fact::Ready)?;
        let until = Instant::now() + Duration::from_secs(self.seconds);
        let orders: Arc<str> = self.orders.as_str().into();
        let mut producers = JoinSet::new();
        for number in 0..self.producers {
            let producer = Producer {
                outbox: outbox.clone(),
                pool: pool.clone(),
                log: Arc::clone(&log),
                orders: Arc::clone(&orders),
                first: (self.node * self.producers + number) * NUMBERS_PER_PRODUCER,
                poisons: self.node == 0 && number == 0,
                customers: self.ordered,
            };
            producers.spawn(producer.run(Duration::from_micros(self.every_us), until));
        }
        let produce = async {
            while let Some(ended) = producers.join_next().await {
                ended.map_err(std::io::Error::other)??;
            }
            log.write(&Fact::Quiet)?;
            // Delivers on, until it is told to stop.
            std::future::pending::<Result<(), std::io::Error>>().await
        };
        tokio::select! {
            _ = stopped => {}
            failed = produce => failed?,
            () = outbox.died() => return Err(Failure::TaskDied),
        }
        outbox.shutdown().await?;
        Ok(())
    }

    async fn build<D: ShopDatabase, O>(
        &self,
        builder: Builder<D, O>,
        log: &Arc<Log>,
    ) -> Result<Outbox<D>, outbox::Error> {
        let builder = builder
            .table(self.table.as_str())
            .node(format!("demo-{}", self.node))
            .lease(Duration::from_millis(self.lease_ms))
            // In order, what other nodes commit is found by polling, where the database has no notifications.
            .poll_interval(Duration::from_millis(if self.ordered { 100 } else { 1000 }))
            .without_purge();
        shop::with_listeners(builder, log, self.node == 0).build().await
    }
}

fn keep_quiet_about_the_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(shop::PANIC) {
            usual(panic);
        }
    }));
}
