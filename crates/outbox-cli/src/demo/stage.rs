//! Where the demo plays: a database with tables of its own, and a directory for the nodes' logs.

use std::fs;
use std::path::PathBuf;

use outbox::{AnyPool, TableName};
use sqlx::Pool;

use super::database::{ShopDatabase, create_orders, is_taken};
use crate::any_pool::{is_in_memory, with_pool};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::target::Url;

/// How many demos may have left their tables behind.
const NAMES: u32 = 1000;

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) url: Url,
    pub(crate) pool: AnyPool,
    /// The event table.
    pub(crate) table: TableName,
    /// The shop's table.
    pub(crate) orders: String,
    /// The nodes' logs, and the SQLite file unless there is another database.
    pub(crate) directory: PathBuf,
    keep: bool,
}

impl Stage {
    /// On the database of the URL, or on a SQLite file in a temporary directory.
    pub(crate) async fn set(url: Option<&Url>, keep: bool) -> Result<Self, Failure> {
        if url.is_some_and(|url| is_in_memory(url.expose())) {
            return Err(Failure::DatabaseInMemory);
        }
        let directory = std::env::temp_dir().join(format!("outbox-demo-{:016x}", rand::random::<u64>()));
        fs::create_dir(&directory)?;
        let url = match url {
            Some(url) => url.clone(),
            None => Url::from(format!("sqlite://{}", directory.join("shop.db").display())),
        };
        let set = async {
            let pool = AnyPool::connect(url.expose()).await?;
            let (orders, table) = with_pool!(&pool, pool => free_names(pool).await)?;
            pool.migrate_up(&table).await?;
            Ok((pool, orders, table))
        };
        match set.await {
            Ok((pool, orders, table)) => Ok(Self {
                url,
                pool,
                table,
                orders,
                directory,
                keep,
            }),
            Err(failure) => {
                fs::remove_dir_all(&directory)?;
                Err(failure)
            }
        }
    }

    /// Drops the tables and removes the files, or says where they are.
    pub(crate) async fn clear(self) -> Result<(), Failure> {
        if self.keep {
            Progress::new().say(format_args!(
                "kept: the tables {} and {}, and the files in {}",
                self.table,
                self.orders,
                self.directory.display()
            ));
            self.pool.close().await;
            return Ok(());
        }
        self.pool.migrate_down(&self.table, 0).await?;
        with_pool!(&self.pool, pool => script(pool, format!("drop table {}", self.orders)).await)?;
        self.pool.close().await;
        fs::remove_dir_all(&self.directory)?;
        Ok(())
    }
}

/// Creates the shop's table under a name that is free: whoever creates it owns the names that go with it, so demos do not
/// disturb each other, nor what an earlier one has kept.
async fn free_names<D: ShopDatabase>(pool: &Pool<D>) -> Result<(String, TableName), Failure> {
    let mut number = 1;
    loop {
        let suffix = if number == 1 {
            String::new()
        } else {
            format!("_{number}")
        };
        let orders = format!("demo_order{suffix}");
        match script(pool, create_orders(&orders)).await {
            Ok(()) => {
                let table = TableName::new(format!("demo_event{suffix}")).map_err(outbox::Error::from)?;
                return Ok((orders, table));
            }
            Err(error) if is_taken(&error) && number < NAMES => number += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

async fn script<D: ShopDatabase>(pool: &Pool<D>, sql: String) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    D::script(&mut connection, sql).await
}
