//! Where the benchmark takes place: a database, and tables of its own in it.

use std::fs;
use std::path::PathBuf;

use outbox::{AnyPool, TableName};
use sqlx::Pool;

use super::bare::BareDatabase;
use crate::any_pool::{is_in_memory, with_pool};
use crate::failure::Failure;
use crate::target::Url;

/// The tables of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) events: TableName,
    /// The business table.
    pub(crate) orders: String,
}

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) url: Url,
    pub(crate) pool: AnyPool,
    /// What most measurements use.
    pub(crate) tables: Tables,
    /// Where finished events pile up, or the other side writes.
    pub(crate) others: Tables,
    /// Holds the SQLite file, unless there is another database.
    directory: Option<PathBuf>,
}

impl Place {
    /// On the database of the URL, or on a SQLite file in a temporary directory. What was made is gone again on an error.
    pub(crate) async fn make(url: Option<&Url>) -> Result<Self, Failure> {
        if url.is_some_and(|url| is_in_memory(url.expose())) {
            return Err(Failure::DatabaseInMemory);
        }
        let name = format!("outbox_bench_{:08x}", rand::random::<u32>());
        let (url, directory) = match url {
            Some(url) => (url.clone(), None),
            None => {
                let directory = std::env::temp_dir().join(&name);
                fs::create_dir(&directory)?;
                let file = directory.join("bench.db");
                (Url::from(format!("sqlite://{}", file.display())), Some(directory))
            }
        };
        let pool = match AnyPool::connect(url.expose()).await {
            Ok(pool) => pool,
            Err(error) => {
                directory.map(fs::remove_dir_all).transpose()?;
                return Err(error.into());
            }
        };
        let place = Self {
            url,
            pool,
            tables: Tables::named(&name)?,
            others: Tables::named(&format!("{name}_others"))?,
            directory,
        };
        match place.create().await {
            Ok(()) => Ok(place),
            Err(failure) => {
                // The first failure is the one to tell of.
                let _ = place.clear().await;
                Err(failure)
            }
        }
    }

    async fn create(&self) -> Result<(), Failure> {
        for tables in [&self.tables, &self.others] {
            self.pool.migrate_up(&tables.events).await?;
            let create = format!(
                "create table {} (number bigint not null primary key, note varchar(200) not null)",
                tables.orders
            );
            with_pool!(&self.pool, pool => script(pool, create).await)?;
        }
        Ok(())
    }

    /// Drops the tables, and removes the file.
    pub(crate) async fn clear(self) -> Result<(), Failure> {
        for tables in [&self.tables, &self.others] {
            self.pool.migrate_down(&tables.events, 0).await?;
            let drop = format!("drop table if exists {}", tables.orders);
            with_pool!(&self.pool, pool => script(pool, drop).await)?;
        }
        self.pool.close().await;
        self.directory.map(fs::remove_dir_all).transpose()?;
        Ok(())
    }
}

impl Tables {
    fn named(name: &str) -> Result<Self, Failure> {
        Ok(Self {
            events: TableName::new(name).map_err(outbox::Error::from)?,
            orders: format!("{name}_order"),
        })
    }
}

/// Runs statements that have no parameters.
pub(crate) async fn script<D: BareDatabase>(pool: &Pool<D>, sql: String) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    D::script(&mut connection, sql).await
}
