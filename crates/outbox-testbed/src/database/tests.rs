use super::*;

/// Writes and reads through a connection of its own.
async fn use_it(server: Server, url: &str) -> sqlx::Result<i64> {
    const STATEMENTS: [&str; 2] = ["create table t (n bigint)", "insert into t values (42)"];
    const QUERY: &str = "select n from t";
    macro_rules! through {
        ($connection:ty) => {{
            let mut connection = <$connection>::connect(url).await?;
            for statement in STATEMENTS {
                connection.execute(statement).await?;
            }
            let number = sqlx::query_scalar(QUERY).fetch_one(&mut connection).await?;
            connection.close().await?;
            Ok(number)
        }};
    }
    match server {
        Server::Postgres => through!(PgConnection),
        Server::MariaDb => through!(MySqlConnection),
        Server::Sqlite => through!(sqlx::SqliteConnection),
    }
}

async fn exists(place: &Place) -> bool {
    match place {
        Place::Postgres { admin_url, name } => {
            let mut connection = PgConnection::connect(admin_url).await.unwrap();
            let query = sqlx::query_scalar("select count(*) from pg_database where datname = $1");
            query
                .bind(name)
                .fetch_one(&mut connection)
                .await
                .map(|count: i64| count == 1)
                .unwrap()
        }
        Place::MariaDb { admin_url, name } => {
            let mut connection = MySqlConnection::connect(admin_url).await.unwrap();
            let query = sqlx::query_scalar("select count(*) from information_schema.schemata where schema_name = ?");
            query
                .bind(name)
                .fetch_one(&mut connection)
                .await
                .map(|count: i64| count == 1)
                .unwrap()
        }
        Place::Sqlite { file } => file.exists(),
    }
}

async fn is_usable_and_gone_after_drop(server: Server) {
    let database = server.database("is usable, and gone after drop").await;
    let place = database.place.clone();
    assert_eq!(database.server(), server);
    assert_eq!(use_it(server, database.url()).await.unwrap(), 42);
    assert!(exists(&place).await, "{server}");
    drop(database);
    assert!(!exists(&place).await, "{server}");
}

#[tokio::test]
async fn postgres_database_is_usable_and_gone_after_drop() {
    is_usable_and_gone_after_drop(Server::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_database_is_usable_and_gone_after_drop() {
    is_usable_and_gone_after_drop(Server::MariaDb).await;
}

#[tokio::test]
async fn sqlite_database_is_usable_and_gone_after_drop() {
    is_usable_and_gone_after_drop(Server::Sqlite).await;
}

#[tokio::test]
async fn sqlite_side_files_are_gone_after_drop() {
    let database = Server::Sqlite.database("wal").await;
    let Place::Sqlite { file } = database.place.clone() else {
        panic!("{database:?}")
    };
    let mut connection = sqlx::SqliteConnection::connect(database.url()).await.unwrap();
    connection.execute("pragma journal_mode = wal").await.unwrap();
    connection.execute("create table t (n bigint)").await.unwrap();
    let side_file = PathBuf::from(format!("{}-wal", file.display()));
    assert!(side_file.exists());
    drop(database);
    assert!(!file.exists() && !side_file.exists());
}

#[tokio::test]
async fn postgres_database_is_gone_although_a_transaction_is_open() {
    let database = Server::Postgres.database("open_transaction").await;
    let place = database.place.clone();
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    connection.execute("begin; create table t (n bigint)").await.unwrap();
    drop(database);
    assert!(!exists(&place).await);
}

#[test]
fn database_can_be_dropped_outside_of_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for server in Server::ALL {
        let database = runtime.block_on(server.database("outside"));
        let place = database.place.clone();
        drop(database);
        assert!(!runtime.block_on(exists(&place)), "{server}");
    }
}

#[tokio::test]
async fn database_of_a_panicking_test_is_kept() {
    for server in Server::ALL {
        let database = server.database("kept").await;
        let place = database.place.clone();
        assert_eq!(use_it(server, database.url()).await.unwrap(), 42);
        let test = std::thread::spawn(move || {
            let _database = database;
            panic!("this panic is part of the test");
        });
        assert!(test.join().is_err());
        assert!(exists(&place).await, "{server}");
        place.remove().await.unwrap();
        assert!(!exists(&place).await, "{server}");
    }
}

#[tokio::test]
async fn many_databases_can_be_created_at_once() {
    for server in Server::ALL {
        let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(server.database("at_once"))).collect();
        let mut urls = Vec::new();
        for task in tasks {
            urls.push(task.await.unwrap().url().to_owned());
        }
        urls.sort();
        urls.dedup();
        assert_eq!(urls.len(), 8, "{server}");
    }
}

#[test]
fn name_is_an_identifier_of_at_most_63_characters() {
    let name = database_name(&"Ünusual::test name;'\"`".repeat(9));
    assert!(name.len() <= 63, "{name}");
    assert!(
        name.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
        "{name}"
    );
    assert_ne!(name, database_name("Ünusual::test name;'\"`"));
}

#[test]
fn database_of_a_url_is_replaced() {
    for (url, expected) in [
        ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/d"),
        (
            "postgres://h/postgres?sslmode=disable",
            "postgres://h/d?sslmode=disable",
        ),
        ("mysql://root@h:1/", "mysql://root@h:1/d"),
        ("mysql://root@h:1", "mysql://root@h:1/d"),
        ("mysql://h?socket=/a/b", "mysql://h/d?socket=/a/b"),
    ] {
        assert_eq!(with_database(url, "d"), expected);
    }
}

#[test]
fn sqlite_path_is_encoded() {
    let url = sqlite_url(Path::new("/a b/50%?#.db"));
    assert_eq!(url, "sqlite:///a%20b/50%25%3F%23.db?mode=rwc");
    let options: sqlx::sqlite::SqliteConnectOptions = url.parse().unwrap();
    assert_eq!(options.get_filename(), Path::new("/a b/50%?#.db"));
}
