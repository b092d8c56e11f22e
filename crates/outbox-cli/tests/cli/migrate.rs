use std::io::Write;

use outbox_testbed::{Server, TestDatabase};
use serde_json::json;

use super::*;

/// The name of the store, as the command prints it.
fn store(server: Server) -> &'static str {
    match server {
        Server::Postgres => "postgres",
        Server::MariaDb => "mysql",
        Server::Sqlite => "sqlite",
    }
}

fn migrate(database: &TestDatabase, arguments: &[&str]) -> Ended {
    let mut all = vec!["migrate"];
    all.extend(arguments);
    all.extend(["--database", database.url()]);
    outbox(&all)
}

#[tokio::test]
async fn tables_are_created_shown_and_dropped() {
    for server in Server::ALL {
        let database = server.database("cli_migrate").await;
        let on = store(server);
        if server == Server::Sqlite {
            execute(database.url(), "select 1").await;
        }

        assert_eq!(
            migrate(&database, &["status"]).ok(),
            format!(
                "VERSION  NAME        APPLIED\n1        the tables  no\n\n\
                 outbox_event on {on} does not exist: run `outbox migrate up`\n"
            )
        );
        let status = migrate(&database, &["status", "--json"]).json();
        assert_eq!(status["up_to_date"], json!(false));
        assert_eq!(status["migrations"][0]["applied_at"], json!(null));

        assert_eq!(
            migrate(&database, &["up"]).ok(),
            format!("outbox_event on {on} is now at version 1 (applied 1)\n")
        );
        assert_eq!(
            migrate(&database, &["up"]).ok(),
            format!("outbox_event on {on} was up to date (version 1)\n")
        );
        assert_eq!(
            migrate(&database, &["up", "--json"]).json(),
            json!({"database": on, "table": "outbox_event", "version": 1, "applied": []})
        );
        let status = migrate(&database, &["status"]).ok();
        assert!(
            status.ends_with(&format!(" UTC\n\noutbox_event on {on} is up to date (version 1)\n")),
            "{status}"
        );
        let status = migrate(&database, &["status", "--json"]).json();
        assert_eq!(status["up_to_date"], json!(true));
        assert!(status["migrations"][0]["applied_at"].is_string(), "{status}");

        assert_eq!(
            migrate(&database, &["down", "--yes"]).ok(),
            format!("outbox_event on {on} is gone, with its companions (undone 1)\n")
        );
        assert_eq!(
            migrate(&database, &["down"]).ok(),
            format!("outbox_event on {on} is at version 0: nothing to undo\n")
        );
        assert_eq!(
            migrate(&database, &["up", "--json"]).json()["applied"],
            json!([1]),
            "{server}: what was undone can be done again"
        );
        assert_eq!(
            migrate(&database, &["down", "--to", "0", "--yes", "--json"]).json(),
            json!({"database": on, "table": "outbox_event", "version": 0, "undone": [1]})
        );
    }
}

#[tokio::test]
async fn events_are_not_dropped_without_a_yes() {
    for server in Server::ALL {
        let database = server.database("cli_migrate_down").await;
        migrate(&database, &["up"]).ok();
        execute(
            database.url(),
            "insert into outbox_event (event_id, event_type, payload, status) \
             values ('a', 'T', '{}', 0), ('b', 'T', '{}', 1), ('c', 'T', '{}', 2)",
        )
        .await;
        assert_eq!(
            migrate(&database, &["down"]).failed(1),
            "error: this drops the table outbox_event and its companions with 3 events in it, 2 of them not delivered: \
             add --yes to do it\n"
        );
        assert_eq!(
            migrate(&database, &["down", "--to", "1", "--json"]).json()["undone"],
            json!([]),
            "{server}: it is at that version"
        );
        assert_eq!(migrate(&database, &["status", "--json"]).json()["version"], json!(1));
    }
}

#[tokio::test]
async fn tables_of_a_newer_release_are_left_alone() {
    let database = Server::Sqlite.database("cli_migrate_newer").await;
    migrate(&database, &["up"]).ok();
    execute(
        database.url(),
        "insert into outbox_event_migration (version, name, applied_at) values (7, 'later', 0)",
    )
    .await;
    assert_eq!(
        migrate(&database, &["down", "--yes"]).failed(1),
        "error: the tables of outbox_event are at version 7, and this command knows no further than 1: \
         use the release that made them\n"
    );
    let status = migrate(&database, &["status"]).ok();
    assert!(
        status.ends_with("outbox_event on sqlite is at version 7, newer than this command knows (1)\n"),
        "{status}"
    );
}

#[tokio::test]
async fn printed_sql_is_accepted_by_the_database_and_up_to_date() {
    for server in Server::ALL {
        let database = server.database("cli_migrate_print").await;
        // The longest name there is: those of its indexes must fit, too.
        let table = "my_events_".to_owned() + &"x".repeat(38);
        for name in ["my_events", &table] {
            let url = format!("{}://x", store(server));
            let sql = outbox(&["migrate", "print", "--database", &url, "--table", name]).ok();
            run_with_the_databases_own_client(&database, &sql).await;

            let status = migrate(&database, &["status", "--json", "--table", name]).json();
            assert_eq!(status["up_to_date"], json!(true), "{server}: {status}");
            assert_eq!(
                migrate(&database, &["up", "--json", "--table", name]).json()["applied"],
                json!([]),
                "{server}: nothing is left to do"
            );
            migrate(&database, &["down", "--yes", "--table", name]).ok();
        }
    }
}

async fn run_with_the_databases_own_client(database: &TestDatabase, sql: &str) {
    let mut client = match database.server() {
        Server::Sqlite => return execute(database.url(), sql).await,
        Server::Postgres => {
            let mut psql = Command::new("psql");
            psql.args(["--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", database.url()]);
            psql
        }
        Server::MariaDb => mariadb(database.url()),
    };
    let mut running = client
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{client:?}: {error}"));
    let mut input = running.stdin.take().expect("standard input is piped");
    input.write_all(sql.as_bytes()).expect("the client reads");
    drop(input);
    let ended = Ended::from(running.wait_with_output().expect("the client ends"));
    assert_eq!(ended.code, Some(0), "{ended:?}\n{sql}");
    assert_eq!(ended.err, "", "{sql}");
}

/// The client takes no URL.
fn mariadb(url: &str) -> Command {
    let address = url.trim_start_matches("mysql://").trim_start_matches("mariadb://");
    let (user, place) = address.rsplit_once('@').unwrap_or(("root", address));
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let (host, name) = place.split_once('/').expect("the URL names a database");
    let (host, port) = host.split_once(':').unwrap_or((host, "3306"));
    let name = name.split('?').next().unwrap_or(name);
    let mut client = Command::new("mariadb");
    client
        .args(["--no-defaults", "--protocol=tcp", "--skip-ssl", "--host", host])
        .args(["--port", port, "--user", user, "--database", name])
        .env("MYSQL_PWD", password);
    client
}

#[tokio::test]
async fn many_at_once_do_the_work_once() {
    for server in Server::ALL {
        let database = server.database("cli_migrate_race").await;
        let racers: Vec<_> = (0..6)
            .map(|_| {
                let mut command = command(&["migrate", "up", "--json", "--database", database.url()]);
                command
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("the command can be run")
            })
            .collect();
        let mut winners = 0;
        for racer in racers {
            let report = Ended::from(racer.wait_with_output().unwrap()).json();
            assert_eq!(report["version"], json!(1), "{server}");
            winners += usize::from(report["applied"] == json!([1]));
        }
        assert_eq!(winners, 1, "{server}");
    }
}

#[tokio::test]
async fn url_may_come_from_the_environment() {
    let database = Server::MariaDb.database("cli_migrate_environment").await;
    let url = database.url().replacen("mysql://", "mariadb://", 1);
    let mut command = command(&["migrate", "up", "--json"]);
    command.env("OUTBOX_DATABASE_URL", url);
    assert_eq!(
        Ended::from(command.output().unwrap()).json(),
        json!({"database": "mysql", "table": "outbox_event", "version": 1, "applied": [1]})
    );
}

#[tokio::test]
async fn asking_for_the_status_creates_no_file() {
    let database = Server::Sqlite.database("cli_migrate_no_file").await;
    let url = database.url().trim_end_matches("?mode=rwc");
    for action in ["status", "down"] {
        let error = outbox(&["migrate", action, "--database", url]).failed(1);
        assert!(error.contains("unable to open database file"), "{error}");
    }
    outbox(&["migrate", "up", "--database", url]).ok();
    outbox(&["migrate", "status", "--database", url]).ok();
}
