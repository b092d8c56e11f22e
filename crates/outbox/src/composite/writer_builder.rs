use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Outbox;
use crate::engine::{Engine, Stops};
use crate::error::Error;
use crate::node;
use crate::notify::{Bell, Notifier};
use crate::purge::{PurgePolicy, Purger};
use crate::service::Services;
use crate::store::Store;
use crate::table::{TableName, TableNameError};
use crate::telemetry::Telemetry;
use crate::write::{Backend, Context, Handoff, Hooks, Writer, WriterHook};

/// What every outbox is made of, whether it delivers or only writes.
pub(super) struct WriterParts<D: Backend> {
    pub(super) pool: D::Pool,
    pub(super) table: Result<TableName, TableNameError>,
    pub(super) hooks: Hooks,
    pub(super) migrate: bool,
    pub(super) clock: fn() -> DateTime<Utc>,
}

impl<D: Backend> WriterParts<D> {
    pub(super) fn new(pool: D::Pool) -> Self {
        Self {
            pool,
            table: Ok(TableName::default()),
            hooks: Hooks::default(),
            migrate: false,
            clock: Utc::now,
        }
    }

    /// The tables, there and of the right version.
    pub(super) async fn open(&self) -> Result<(TableName, Arc<dyn Store>), Error> {
        let table = self.table.clone()?;
        if self.migrate {
            D::migrate(&self.pool, &table).await?;
        }
        let store = crate::failpoint::wrapped(D::store(&self.pool, &table));
        crate::migrate::check(&*store, &table).await?;
        Ok((table, store))
    }

    pub(super) fn writer(self, table: TableName, handoff: Arc<dyn Handoff>) -> Arc<Writer<D>> {
        Arc::new(Writer {
            statements: D::statements(&table),
            context: Arc::new(Context {
                table,
                hooks: self.hooks,
                handoff,
                clock: self.clock,
            }),
        })
    }
}

/// The options that every builder has.
macro_rules! writer_options {
    () => {
        /// The event table. Default: `outbox_event`.
        pub fn table(mut self, name: impl Into<String>) -> Self {
            self.writer.table = TableName::new(name);
            self
        }

        /// Adds a hook; they run in the order they were added.
        pub fn hook(mut self, hook: impl WriterHook) -> Self {
            self.writer.hooks.push(Arc::new(hook));
            self
        }

        /// Creates the tables, or brings them up to date, when the outbox is built. Safe from many processes at once.
        pub fn migrate(mut self) -> Self {
            self.writer.migrate = true;
            self
        }

        /// What typed events take for the time they happened at. Default: this machine's clock.
        pub fn clock(mut self, clock: fn() -> DateTime<Utc>) -> Self {
            self.writer.clock = clock;
            self
        }

        /// Deletes finished events by this policy.
        pub fn purge(mut self, policy: PurgePolicy) -> Self {
            self.purge = Some(policy);
            self
        }
    };
}
pub(super) use writer_options;

/// Makes an [`Outbox`] that only writes.
#[must_use = "a builder does nothing until build() is called"]
pub struct WriterBuilder<D: Backend> {
    writer: WriterParts<D>,
    purge: Option<PurgePolicy>,
}

impl<D: Backend> std::fmt::Debug for WriterBuilder<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriterBuilder")
            .field("table", &self.writer.table)
            .finish_non_exhaustive()
    }
}

impl<D: Backend> WriterBuilder<D> {
    pub(super) fn new(pool: D::Pool) -> Self {
        Self {
            writer: WriterParts::new(pool),
            purge: None,
        }
    }

    writer_options!();

    /// The outbox.
    ///
    /// # Errors
    /// [`Error::TableName`]; [`Error::SchemaMissing`] and [`Error::SchemaOutdated`] if the tables are not what this
    /// library needs; [`Error::Database`].
    pub async fn build(self) -> Result<Outbox<D>, Error> {
        let (table, store) = self.writer.open().await?;
        let stops = Stops::default();
        let services = Services::new(stops.clone());
        let bell = Arc::new(Bell::default());
        let notifier = Notifier {
            bell: Arc::clone(&bell),
            store: Arc::clone(&store),
        };
        services.start("notifier", Duration::from_secs(60), |pulse| {
            notifier.run(stops.intake.clone(), pulse)
        });
        if let Some(policy) = self.purge {
            let telemetry = Arc::new(Telemetry::new(table.as_str()));
            let purger = Purger {
                policy,
                owner: node::name(),
                store: Arc::clone(&store),
                telemetry,
            };
            services.start("purger", Duration::from_secs(600), |pulse| {
                purger.run(stops.intake.clone(), pulse)
            });
        }
        let engine = Engine {
            services,
            stops,
            store: Arc::clone(&store),
            delivery: None,
            drain_timeout: Duration::ZERO,
        };
        Ok(Outbox {
            writer: self.writer.writer(table, bell),
            store,
            engine: Arc::new(engine),
        })
    }
}
