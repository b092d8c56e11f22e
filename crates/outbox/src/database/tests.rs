use super::*;

fn refused(url: &str) -> String {
    Database::from_url(url).unwrap_err().to_string()
}

#[test]
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
fn scheme_names_the_database() {
    for (url, database, connects) in [
        ("sqlite::memory:", Database::Sqlite, "sqlite::memory:"),
        ("sqlite://orders.db", Database::Sqlite, "sqlite://orders.db"),
        ("SQLite:orders.db", Database::Sqlite, "sqlite:orders.db"),
        ("postgres://x", Database::Postgres, "postgres://x"),
        ("postgresql://x/y", Database::Postgres, "postgres://x/y"),
        ("POSTGRES:x", Database::Postgres, "postgres:x"),
        ("mysql://x", Database::MySql, "mysql://x"),
        ("mariadb://u:p@x:1/y?a=b", Database::MySql, "mysql://u:p@x:1/y?a=b"),
    ] {
        assert_eq!(
            split(url).expect("the scheme is known"),
            (database, connects.to_owned()),
            "{url}"
        );
    }
}

#[test]
fn unknown_scheme_is_told_without_the_rest_of_the_url() {
    assert_eq!(
        refused("oracle://scott:tiger@db/shop"),
        "unknown database URL scheme \"oracle\": use sqlite://, postgres://, mysql:// or mariadb:// \
         (and the library's feature of that name)"
    );
    for url in [
        "",
        "tiger",
        "://tiger",
        "//tiger",
        "scott:tiger@db/shop",
        "tiger@db:5432/shop",
        "jdbc:oracle:thin:tiger",
        " postgres://tiger",
        "x y://tiger",
        "tigertigertigertigertigertigertigertigertiger://",
    ] {
        let message = refused(url);
        assert!(
            message.starts_with("unknown database URL scheme \"\": use "),
            "{url}: {message}"
        );
    }
}

#[test]
#[cfg(not(feature = "mysql"))]
fn database_without_its_feature_is_told_by_the_feature() {
    assert_eq!(
        refused("mariadb://scott:tiger@db/shop"),
        "this program was built without mysql: enable the feature \"mysql\" of the outbox crate"
    );
}

#[tokio::test]
#[cfg(feature = "postgres")]
async fn failed_connection_says_why_and_not_where() {
    let url = "postgres://scott:tiger@127.0.0.1:1/shop";
    let error = AnyPool::connect(url).await.unwrap_err();
    assert!(error.is_retryable());
    for message in [error.to_string(), format!("{error:?}")] {
        assert!(message.contains("refused"), "{message}");
        assert!(!message.contains("tiger"), "{message}");
    }
    let error = AnyPool::connect("postgres://scott:tiger@db:shop/x").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "connecting to the database: error with configuration: invalid port number"
    );
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;

    fn table() -> TableName {
        TableName::default()
    }

    #[tokio::test]
    async fn new_file_is_created_in_wal_mode_and_migrated() {
        let database = outbox_testbed::Server::Sqlite.database("any_pool").await;
        let url = database.url().trim_end_matches("?mode=rwc");
        let pool = AnyPool::connect(url).await.unwrap();
        assert_eq!(pool.database(), Database::Sqlite);
        assert_eq!(format!("{pool:?}"), "AnyPool(sqlite)");

        let AnyPool::Sqlite(sqlite) = &pool else {
            panic!("{pool:?}")
        };
        let mode: String = sqlx::query_scalar("pragma journal_mode")
            .fetch_one(sqlite)
            .await
            .unwrap();
        assert_eq!(mode, "wal");

        assert_eq!(pool.schema_version(&table()).await.unwrap(), 0);
        assert_eq!(pool.migrate_up(&table()).await.unwrap(), [1]);
        assert_eq!(pool.store(&table()).schema_version().await.unwrap(), 1);
        assert!(pool.migrate_status(&table()).await.unwrap()[0].applied_at.is_some());
        assert_eq!(pool.migrate_down(&table(), 0).await.unwrap(), [1]);
        assert_eq!(pool.store(&table()).schema_version().await.unwrap(), 0);
        pool.close().await;

        AnyPool::connect_existing(url).await.unwrap();
    }

    #[tokio::test]
    async fn reading_leaves_the_file_as_it_is() {
        let database = outbox_testbed::Server::Sqlite.database("any_pool_reading").await;
        let url = database.url().trim_end_matches("?mode=rwc");
        let theirs = sqlx::SqlitePool::connect(database.url()).await.unwrap();
        sqlx::query("create table theirs (id)").execute(&theirs).await.unwrap();
        for attempt in [
            AnyPool::connect(&format!("{url}?mode=ro")).await,
            AnyPool::connect_existing(url).await,
            AnyPool::connect_existing(&format!("{url}?mode=ro")).await,
        ] {
            assert_eq!(attempt.unwrap().schema_version(&table()).await.unwrap(), 0);
        }
        let mode: String = sqlx::query_scalar("pragma journal_mode")
            .fetch_one(&theirs)
            .await
            .unwrap();
        assert_eq!(mode, "delete");
    }

    #[tokio::test]
    async fn missing_file_is_not_created_unasked() {
        let database = outbox_testbed::Server::Sqlite.database("any_pool_missing").await;
        let url = database.url().trim_end_matches("?mode=rwc");
        for attempt in [
            AnyPool::connect_existing(url).await,
            AnyPool::connect(&format!("{url}?mode=rw")).await,
        ] {
            assert_eq!(
                attempt.unwrap_err().to_string(),
                "connecting to the database: error returned from database: (code: 14) unable to open database file"
            );
        }
    }

    #[tokio::test]
    async fn many_can_open_a_new_file_at_once() {
        let database = outbox_testbed::Server::Sqlite.database("any_pool_race").await;
        let url = database.url().trim_end_matches("?mode=rwc").to_owned();
        let openers: Vec<_> = (0..8)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move {
                    let pool = AnyPool::connect(&url).await?;
                    pool.migrate_up(&table()).await
                })
            })
            .collect();
        let mut applied = Vec::new();
        for opener in openers {
            applied.extend(opener.await.unwrap().unwrap());
        }
        assert_eq!(applied, [1], "one does the work, the others find it done");
    }
}
