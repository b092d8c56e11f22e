use outbox_testbed::Server;
use serde_json::{Value, json};

use super::scene::Scene;
use super::*;

fn ids(listed: &Value) -> Vec<&str> {
    listed
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["id"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn status_says_how_much_there_is_to_do() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_status").await;
        let text = scene.outbox(&["status"]).ok();
        assert!(text.starts_with("outbox_event on "), "{text}");
        assert!(
            text.contains(
                "STATUS  TYPE     EVENTS\n\
                 new     Busy     1\n\
                 new     Waiting  1\n\
                 dead    Broken   3\n\n\
                 2 events pending, 3 events dead\n"
            ),
            "{text}"
        );
        let status = scene.outbox(&["status", "--json"]).json();
        assert_eq!(
            (&status["new"], &status["retry"], &status["dead"], &status["pending"]),
            (&json!(2), &json!(0), &json!(3), &json!(2))
        );
        assert_eq!((&status["version"], &status["at_least"]), (&json!(1), &json!(false)));
        assert_eq!(
            status["counts"][2],
            json!({"status": "dead", "event_type": "Broken", "count": 3})
        );
    }
}

#[tokio::test]
async fn events_are_listed_by_what_is_asked_for_and_page_by_page() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_list").await;
        let list = |arguments: &[&str]| {
            let all = [&["events", "list", "--json"], arguments].concat();
            scene.outbox(&all).json()
        };
        assert_eq!(list(&[]).as_array().unwrap().len(), 7, "{server}");
        assert_eq!(ids(&list(&["--status", "new,retry"])), ["busy", "later"]);
        assert_eq!(ids(&list(&["--type", "Fine"])), ["done-1", "done-2"]);
        assert_eq!(
            ids(&list(&["--aggregate-type", "Order", "--aggregate-id", "2"])),
            ["dead-2"]
        );
        assert_eq!(ids(&list(&["--tenant", "acme"])), ["dead-1"]);
        assert_eq!(ids(&list(&["--error", "timeout"])), ["dead-1", "dead-2"]);
        assert_eq!(list(&["--since", "1h"]).as_array().unwrap().len(), 7);
        assert_eq!(list(&["--until", "1h"]), json!([]));
        assert_eq!(list(&["--since", "2099-01-01T00:00:00Z"]), json!([]));

        let page = list(&["--limit", "2"]);
        assert_eq!(ids(&page), ["dead-1", "dead-2"]);
        let after = page[1]["seq"].to_string();
        assert_eq!(ids(&list(&["--limit", "2", "--after", &after])), ["dead-3", "done-1"]);
        let text = scene.outbox(&["events", "list", "--limit", "2"]).ok();
        assert!(
            text.ends_with(&format!("\nthere may be more: --after {after}\n")),
            "{text}"
        );
        assert_eq!(scene.outbox(&["events", "list", "--type", "X"]).ok(), "no events\n");

        let dead = scene.outbox(&["dead", "list", "--json"]).json();
        assert_eq!(ids(&dead), ["dead-1", "dead-2", "dead-3"]);
        let text = scene.outbox(&["dead", "list"]).ok();
        assert!(text.contains("no such customer\\u{1b}[2J"), "{server}: {text}");
    }
}

#[tokio::test]
async fn event_is_shown_with_every_field_its_payload_and_its_failures() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_show").await;
        let event = scene.outbox(&["events", "show", "dead-1", "--json"]).json();
        let expected = json!({
            "id": "dead-1", "status": "dead", "type": "Broken", "aggregate_type": "Order", "aggregate_id": "1",
            "tenant_id": "acme", "attempts": 1, "last_error": "the broker answered with a timeout", "locked_by": null,
            "lease_until": null, "done_at": null, "done_by": ["mail"], "headers": {"source": "web"},
            "content_type": "application/json", "payload_bytes": 15, "payload": "{\"total\": 1.50}",
            "payload_base64": null, "undecodable": null,
        });
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&event[name], value, "{server}: {name}");
        }
        for time in ["occurred_at", "created_at", "available_at", "dead_at"] {
            let at = event[time].as_str().unwrap();
            assert!(
                at.starts_with("20") && at.ends_with('Z') && at.contains('T'),
                "{time}: {at}"
            );
        }
        let attempts = event["failed_attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1);
        assert_eq!(
            (&attempts[0]["attempt"], &attempts[0]["node"]),
            (&json!(1), &json!("node-a"))
        );

        let text = scene.outbox(&["dead", "show", "dead-1"]).ok();
        for part in [
            "id              dead-1\n",
            "tenant          acme\n",
            "\nheaders\n  source: web\n",
            "\npayload, 15 bytes of JSON\n{\"total\": 1.50}\n",
            " on node-a: the broker answered with a timeout\n",
        ] {
            assert!(text.contains(part), "{server}: {part:?} is not in {text}");
        }

        let binary = scene.outbox(&["events", "show", "dead-3", "--json"]).json();
        assert_eq!(
            (&binary["payload"], &binary["payload_base64"]),
            (&json!(null), &json!("AAH+/w=="))
        );
        let text = scene.outbox(&["events", "show", "dead-3"]).ok();
        assert!(text.contains("\npayload, 4 bytes of binary data"), "{text}");
        assert!(text.contains("\n00 01 fe ff\n"), "{text}");

        let busy = scene.outbox(&["events", "show", "busy", "--json"]).json();
        assert_eq!(busy["locked_by"], json!("node-a"));
        assert!(busy["lease_until"].is_string());
    }
}

#[tokio::test]
async fn unknown_id_is_an_error() {
    for server in Server::ALL {
        let scene = Scene::set(server, "cli_unknown").await;
        for command in [
            ["events", "show"],
            ["events", "discard"],
            ["dead", "show"],
            ["dead", "replay"],
            ["dead", "discard"],
        ] {
            let error = scene.outbox(&[command[0], command[1], "nobody"]).failed(1);
            assert_eq!(error, "error: there is no event with the id nobody in outbox_event\n");
        }
        for command in ["show", "replay", "discard"] {
            let error = scene.outbox(&["dead", command, "done-1"]).failed(1);
            assert_eq!(error, "error: the event done-1 is not dead: its status is done\n");
        }
    }
}

#[tokio::test]
async fn missing_tables_are_an_error_that_says_what_to_do() {
    for server in Server::ALL {
        let database = server.database("cli_no_tables").await;
        execute(database.url(), "select 1").await;
        for command in [
            &["status"][..],
            &["events", "list"],
            &["events", "show", "x"],
            &["events", "discard", "x"],
            &["dead", "list"],
            &["dead", "replay", "--all", "--yes"],
            &["purge", "--older-than", "7d", "--yes"],
        ] {
            let all = [command, &["--database", database.url(), "--table", "mine"]].concat();
            assert_eq!(
                outbox(&all).failed(1),
                "error: the table mine does not exist: run `outbox migrate up`, or outbox::migrate::up\n",
                "{command:?}"
            );
        }
    }
}
