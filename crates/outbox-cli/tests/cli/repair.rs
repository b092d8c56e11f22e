use std::io::Write;

use outbox_testbed::Server;
use serde_json::json;

use super::scene::Scene;
use super::*;

#[tokio::test]
async fn one_event_is_replayed_or_discarded_without_asking() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_one").await;
        assert_eq!(
            scene.outbox(&["dead", "replay", "dead-1"]).ok(),
            "the event dead-1 will be delivered again\n"
        );
        let event = scene.outbox(&["events", "show", "dead-1", "--json"]).json();
        assert_eq!(
            (
                &event["status"],
                &event["attempts"],
                &event["last_error"],
                &event["dead_at"]
            ),
            (&json!("new"), &json!(0), &json!(null), &json!(null)),
            "{server}"
        );
        let replayed = scene.outbox(&["dead", "replay", "dead-2", "--json"]).json();
        assert_eq!((&replayed["matched"], &replayed["replayed"]), (&json!(1), &json!(1)));

        assert_eq!(
            scene.outbox(&["dead", "discard", "dead-3"]).ok(),
            "discarded the event dead-3\n"
        );
        let discarded = scene.outbox(&["events", "discard", "done-1", "--json"]).json();
        assert_eq!((&discarded["discarded"], &discarded["left"]), (&json!(1), &json!(0)));
        assert_eq!((scene.count("dead"), scene.count("done")), (0, 1));
    }
}

#[tokio::test]
async fn many_events_are_changed_only_with_a_yes() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_many").await;
        let timeouts = ["dead", "replay", "--type", "Broken", "--error", "timeout"];
        assert_eq!(
            scene.outbox(&timeouts).failed(1),
            "error: this would replay 2 dead events (type Broken, error containing timeout): add --yes to do it; \
             nothing was changed\n"
        );
        assert_eq!(scene.outbox(&["dead", "discard", "--all"]).failed(1).lines().count(), 1);
        assert_eq!(scene.count("dead"), 3, "{server}");

        assert_eq!(
            scene.outbox(&[&timeouts[..], &["--dry-run"]].concat()).ok(),
            "would replay 2 dead events (type Broken, error containing timeout)\n"
        );
        let dry = scene
            .outbox(&["dead", "discard", "--all", "--dry-run", "--json"])
            .json();
        assert_eq!(
            (&dry["matched"], &dry["discarded"], &dry["dry_run"]),
            (&json!(3), &json!(0), &json!(true))
        );
        assert_eq!(scene.count("dead"), 3, "{server}");

        assert_eq!(
            scene.outbox(&[&timeouts[..], &["--yes"]].concat()).ok(),
            "2 events will be delivered again\n"
        );
        assert_eq!(
            scene.outbox(&timeouts).ok(),
            "0 dead events (type Broken, error containing timeout): nothing to replay\n"
        );
        assert_eq!((scene.count("dead"), scene.count("new")), (1, 4));
        let discarded = scene.outbox(&["dead", "discard", "--all", "--yes", "--json"]).json();
        assert_eq!((&discarded["matched"], &discarded["discarded"]), (&json!(1), &json!(1)));
        assert_eq!(scene.count("dead"), 0);
    }
}

#[tokio::test]
async fn event_that_is_being_delivered_is_not_discarded() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_busy").await;
        let error = scene.outbox(&["events", "discard", "busy"]).failed(1);
        assert!(
            error.starts_with("error: the event busy is being delivered by node-a, until 20"),
            "{server}: {error}"
        );
        assert_eq!(
            scene.outbox(&["events", "discard", "--status", "new", "--yes"]).ok(),
            "discarded 1 event\n1 event left alone: being delivered, or written since\n"
        );
        let all = scene.outbox(&["events", "discard", "--all", "--yes", "--json"]).json();
        assert_eq!(
            (&all["matched"], &all["discarded"], &all["left"]),
            (&json!(6), &json!(5), &json!(1))
        );
    }
}

#[tokio::test]
async fn only_finished_events_of_that_age_status_and_type_are_purged() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_purge").await;
        let purge = |arguments: &[&str]| scene.outbox(&[&["purge"], arguments].concat());
        assert_eq!(purge(&["--older-than", "1h", "--yes"]).ok(), "purged 0 events\n");
        assert_eq!(
            purge(&["--older-than", "0s", "--type", "Fine"]).failed(1),
            "error: this would purge up to 2 done or dead events (type Fine) written more than 0.0 s ago: \
             add --yes to do it; nothing was changed\n"
        );
        let dry = purge(&["--older-than", "0s", "--dry-run", "--json"]).json();
        assert_eq!((&dry["at_most"], &dry["purged"]), (&json!(5), &json!(0)));
        let purged = purge(&["--older-than", "0s", "--status", "done", "--yes", "--json"]).json();
        assert_eq!(purged["purged"], json!(2), "{server}");
        assert_eq!(purge(&["--older-than", "0s", "--yes"]).ok(), "purged 3 events\n");
        assert_eq!((scene.count("new"), scene.count("dead")), (2, 0));
    }
}

#[tokio::test]
async fn terminal_is_asked() {
    let scene = Scene::set(Server::Sqlite, "cli_terminal").await;
    let answer = |answer: &str| {
        let line = format!(
            "'{}' dead discard --all --database '{}'",
            env!("CARGO_BIN_EXE_outbox"),
            scene.database.url()
        );
        // Gives the command a terminal.
        let mut script = Command::new("script");
        let mut running = script
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env_remove("OUTBOX_DATABASE_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut input = running.stdin.take().unwrap();
        input.write_all(answer.as_bytes()).unwrap();
        let ended = Ended::from(running.wait_with_output().unwrap());
        drop(input);
        assert!(
            ended.out.contains("This will discard 3 dead events. Go on? [y/N]"),
            "{ended:?}"
        );
        ended
    };
    let ended = answer("n\n");
    assert_eq!(ended.code, Some(1));
    assert!(ended.out.contains("error: nothing was changed"), "{ended:?}");
    assert_eq!(scene.count("dead"), 3);
    let ended = answer("y\n");
    assert_eq!(ended.code, Some(0));
    assert!(ended.out.contains("discarded 3 events"), "{ended:?}");
    assert_eq!(scene.count("dead"), 0);
}

#[test]
fn what_is_meant_must_be_said() {
    for arguments in [
        &["dead", "replay"][..],
        &["dead", "discard", "--yes"],
        &["events", "discard"],
    ] {
        let all = [arguments, &["--database", "sqlite://nowhere.db"]].concat();
        let error = outbox(&all).failed(2);
        assert!(
            error.contains("say which events: an ID, one or more filters, or --all"),
            "{error}"
        );
    }
    for arguments in [
        &["dead", "replay", "x", "--all"][..],
        &["dead", "replay", "x", "--type", "T"],
        &["dead", "replay", "--all", "--type", "T"],
        &["dead", "replay", "--all", "--yes", "--dry-run"],
        &["events", "list", "--since", "yesterday"],
        &["events", "list", "--status", "gone"],
        &["events", "list", "--limit", "0"],
        &["events", "show", ""],
        &["purge"],
        &["purge", "--older-than", "7"],
        &["purge", "--older-than", "7d", "--status", "new"],
    ] {
        let all = [arguments, &["--database", "sqlite://nowhere.db"]].concat();
        outbox(&all).failed(2);
    }
}
