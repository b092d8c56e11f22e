use super::*;

#[test]
fn help_teaches_with_examples() {
    let help = outbox(&["migrate", "--help"]).ok();
    assert!(help.contains("outbox migrate print --database postgres:"), "{help}");
    let help = outbox(&["--help"]).ok();
    assert!(help.contains("Exit codes: 0 done; 1 failed"), "{help}");
    assert!(!help.contains("demo-node") && !help.contains("bench-node"), "{help}");
    for command in [
        "demo",
        "migrate up",
        "status",
        "events list",
        "dead list",
        "dead replay",
        "purge",
        "bench drain",
    ] {
        assert!(help.contains(&format!("\n  outbox {command}")), "{command}: {help}");
    }
    for command in ["migrate", "status", "events", "dead", "purge", "demo", "bench"] {
        let help = outbox(&[command, "--help"]).ok();
        assert!(help.contains("Examples:\n"), "{command}: {help}");
        assert!(help.contains(&format!("\n  outbox {command}")), "{command}: {help}");
    }
}

#[test]
fn table_name_that_is_no_identifier_is_a_usage_error() {
    let long = "x".repeat(64);
    for name in ["a;drop table x", &long, "", "\"quoted\"", "`quoted`"] {
        for action in ["up", "down", "status", "print"] {
            let error = outbox(&["migrate", action, "--database", "sqlite::memory:", "--table", name]).failed(2);
            assert!(
                error.contains("cannot be a table name: use 1 to 48 ASCII letters, digits and underscores"),
                "{error}"
            );
        }
    }
}

#[test]
fn unknown_scheme_is_an_error() {
    for action in ["up", "down", "status", "print"] {
        let error = outbox(&["migrate", action, "--database", "oracle://scott:tiger@db/shop"]).failed(1);
        assert_eq!(
            error,
            "error: unknown database URL scheme \"oracle\": use sqlite://, postgres://, mysql:// or mariadb:// \
             (and the library's feature of that name)\n"
        );
    }
}

#[test]
fn database_must_be_named() {
    let error = outbox(&["migrate", "status"]).failed(2);
    assert!(error.contains("--database <URL>"), "{error}");
}

#[test]
fn unreachable_server_is_an_error_at_once() {
    for url in [
        "postgres://scott:tiger@127.0.0.1:1/x",
        "mariadb://scott:tiger@127.0.0.1:1/x",
    ] {
        let error = outbox(&["migrate", "up", "--database", url]).failed(1);
        assert!(error.starts_with("error: connecting to the database: "), "{error}");
        assert!(error.contains("refused"), "{error}");
    }
}

#[test]
fn password_is_never_shown() {
    let url = "postgres://scott:tiger@127.0.0.1:1/x";
    for arguments in [
        vec!["migrate", "up", "--database", url],
        vec!["migrate", "up", url],
        vec!["migrate", "up", "--help", "--database", url],
        vec!["migrate", "up", "--database", "postgres://scott:tiger@db:port/x"],
        vec!["migrate", "up", "--database", "scott:tiger@db/x"],
        vec!["migrate", "up", "--database", url, "--to", "1"],
        vec!["status", "--database", url],
        vec!["dead", "replay", url, "--all"],
        vec!["demo", "--database", url],
        vec!["demo", url],
        vec!["bench", "drain", "--database", url],
        vec!["bench", url],
        vec![url],
    ] {
        let mut command = command(&arguments);
        command.env("OUTBOX_DATABASE_URL", "mysql://scott:tiger@db/x");
        let ended = Ended::from(command.output().unwrap());
        assert!(!format!("{ended:?}").contains("tiger"), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn reader_that_has_gone_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command(&["migrate", "print", "--database", "postgres:"]);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(Ended::from(output.wait_with_output().unwrap()).ok(), "");
}
