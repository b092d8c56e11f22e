//! Connections that are set up in unusual ways, and tables of unusual names.

crate::on_every_database! {
    upper_case_and_reserved_words_name_tables
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_serializable_by_default_fails_nobody() {
    tests::isolation("serializable").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_repeatable_reads_by_default_fails_nobody() {
    tests::isolation("repeatable read").await;
}

mod tests {
    use std::time::Duration;

    use outbox::retry::Fixed;
    use outbox::store::Status;
    use outbox::{Backend, Builder, Error, Event, Outbox, PurgePolicy};
    use outbox_tests::{Database, On, script};
    use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
    use sqlx::postgres::PgConnectOptions;
    use sqlx::{Executor, PgPool};

    use crate::heard::{Answer, Heard, drained, event, publish, settled};
    use crate::regressions::counters::Counters;

    const POLL: Duration = Duration::from_millis(10);

    /// Three nodes and four writers, with neither a failed transaction nor a failed statement of ours.
    pub(super) async fn isolation(level: &str) {
        let on = On::<sqlx::Postgres>::open("isolation").await;
        let default = format!(
            "do $$ begin execute format(
                'alter database %I set default_transaction_isolation = ''{level}''', current_database()
            ); end $$"
        );
        script(&on.pool, &default).await;
        // Only new connections have it.
        let pool = PgPool::connect(&on.url()).await.unwrap();
        let heard = Heard::default();
        let nodes: Vec<_> = (0..3)
            .map(|_| {
                let node = Outbox::multi_node(&pool)
                    .without_hot_path()
                    .poll_interval(POLL)
                    .poll_batch(50)
                    .listen("Placed", heard.listener());
                Counters::build(node)
            })
            .collect();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (pool, outbox) = (pool.clone(), nodes[writer % 3].0.clone());
                tokio::spawn(async move {
                    for _ in 0..40 {
                        let mut tx = outbox.begin(&pool).await?;
                        let events = (0..5).map(|_| event("Placed"));
                        outbox.publish_all(&mut tx, events).await?;
                        tx.commit().await?;
                    }
                    Ok::<_, Error>(())
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap().unwrap();
        }
        drained(&**nodes[0].0.store()).await;
        for (node, counters) in &nodes {
            node.shutdown().await.unwrap();
            assert_eq!(counters.take("error"), 0);
        }
        assert_eq!(heard.count(), 800);
    }

    /// Publish, fail, try again, deliver later, purge; with times that are right.
    async fn cycle<D: Backend>(pool: &D::Pool, builder: Builder<D>) {
        let heard = Heard::answering([Answer::Fail]);
        let outbox = builder
            .migrate()
            .poll_interval(Duration::from_millis(200))
            .retry(Fixed::new(Duration::from_millis(20), 3))
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let id = publish(&outbox, pool, &event("Placed")).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        let now = chrono::Utc::now();
        for time in [row.created_at, row.available_at, row.done_at.unwrap()] {
            assert!((now - time).abs() < chrono::Duration::seconds(10), "{time} {now}");
        }
        assert_eq!(row.attempts, 1);

        let delay = Duration::from_secs(2);
        let now = chrono::Utc::now();
        let late = [
            Event::builder("Placed").json("{}").deliver_after(delay).build(),
            Event::builder("Placed").json("{}").available_at(now + delay).build(),
        ]
        .map(Result::unwrap);
        let mut tx = outbox.begin(pool).await.unwrap();
        outbox.publish_all(&mut tx, &late).await.unwrap();
        tx.commit().await.unwrap();
        for one in &late {
            let row = settled(&**outbox.store(), one.id(), Status::Done).await;
            assert!(row.done_at.unwrap() >= now + delay, "too early: {row:?}");
        }
        assert_eq!(heard.count(), 4);
        let purged = outbox.admin().purge(&PurgePolicy::keep(Duration::ZERO), |_| ()).await;
        assert_eq!(purged.unwrap(), 3);
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn upper_case_and_reserved_words_name_tables<D: Database>() {
        let on = On::<D>::open("upper_case").await;
        let longest = "Orders_Outbox_Of_48_Characters_And_Some_Upper_Ca";
        tokio::join!(
            cycle(&on.pool, Outbox::single_node(&on.pool).table(longest)),
            cycle(
                &on.pool,
                Outbox::multi_node(&on.pool).node("x".repeat(500)).table("SELECT")
            ),
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sessions_of_postgres_may_differ_in_everything() {
        let on = On::<sqlx::Postgres>::open("odd_session").await;
        let options: PgConnectOptions = on.url().parse().unwrap();
        let options = options.options([
            ("timezone", "Asia/Kolkata"),
            ("datestyle", "SQL,DMY"),
            ("intervalstyle", "sql_standard"),
            ("default_transaction_isolation", "serializable"),
            ("default_transaction_deferrable", "on"),
        ]);
        let pool = PgPool::connect_with(options).await.unwrap();
        cycle(&pool, Outbox::single_node(&pool)).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sessions_of_mariadb_may_differ_in_everything() {
        const ODD: &str = "set session sql_mode = 'ANSI,ANSI_QUOTES,NO_BACKSLASH_ESCAPES,ORACLE',
                           time_zone = '+05:30', tx_isolation = 'SERIALIZABLE', auto_increment_increment = 7";
        let on = On::<sqlx::MySql>::open("odd_session").await;
        let options: MySqlConnectOptions = on.url().parse().unwrap();
        let pool = MySqlPoolOptions::new()
            .after_connect(|connection, _| Box::pin(async move { connection.execute(ODD).await.map(|_| ()) }))
            .connect_with(options.timezone(Some("-03:00".to_owned())))
            .await
            .unwrap();
        cycle(&pool, Outbox::single_node(&pool)).await;
    }

    /// The connections of such a pool share one cache, and its locks.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_pool_in_memory_takes_several_writers_at_once() {
        let pool = sqlx::SqlitePool::connect("sqlite::memory:").await.unwrap();
        let heard = Heard::default();
        let outbox = Outbox::single_node(&pool)
            .migrate()
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let (pool, outbox) = (pool.clone(), outbox.clone());
                tokio::spawn(async move {
                    for _ in 0..50 {
                        publish(&outbox, &pool, &event("Placed")).await;
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        drained(&**outbox.store()).await;
        outbox.shutdown().await.unwrap();
        assert_eq!(heard.count(), 200);
    }
}
