//! Rows that other programs wrote, and odd ones of our own.

crate::on_every_database! {
    a_row_due_before_1970_is_delivered
    an_event_from_before_1970_is_delivered
    texts_of_any_characters_come_back_as_they_were
    an_empty_payload_goes_in_a_batch_with_others
    json_as_deep_as_is_allowed_is_delivered
}

#[tokio::test]
async fn a_row_of_infinite_time_is_dead_and_others_flow_on() {
    let row = "insert into outbox_event (event_id, event_type, payload, occurred_at)
               values ('bad', 'Placed', '{}', 'infinity')";
    tests::a_bad_row_is_dead_and_others_flow_on::<sqlx::Postgres>(row, "occurred_at").await;
}

#[tokio::test]
async fn a_row_of_bad_utf8_is_dead_and_others_flow_on() {
    let row = "insert into outbox_event (event_id, event_type, payload)
               values ('bad', 'Placed', cast(x'22e422' as text))";
    tests::a_bad_row_is_dead_and_others_flow_on::<sqlx::Sqlite>(row, "payload").await;
}

#[test]
fn json_deeper_than_every_database_takes_is_refused() {
    for depth in [outbox::Payload::MAX_DEPTH + 1, 500, 10_000] {
        let refused = outbox::Event::json("Placed", tests::nested(depth)).unwrap_err();
        assert!(
            matches!(refused, outbox::EventError::PayloadTooDeep { depth: found } if found == depth),
            "{refused:?}"
        );
        let message =
            format!("the payload is nested {depth} levels deep; at most 31 are allowed: flatten it, or use bytes()");
        assert_eq!(refused.to_string(), message);
    }
}

#[test]
fn an_event_due_in_thousands_of_years_is_refused() {
    for years in [9_000, 200_000] {
        let at = chrono::Utc::now() + chrono::Duration::days(365 * years);
        let refused = outbox::Event::builder("Placed").json("{}").available_at(at).build();
        assert!(
            matches!(refused, Err(outbox::EventError::DelayTooLong)),
            "{years} years: {refused:?}"
        );
    }
}

mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use outbox::store::Status;
    use outbox::{Delivery, Event, EventId, Failure, Outbox, Payload};
    use outbox_tests::{Database, On, SqlDatabase, script};

    use crate::heard::{Heard, event, publish, settled};

    const POLL: Duration = Duration::from_millis(20);

    /// The zero time of Go and .NET is in the year 1.
    pub(super) async fn a_row_due_before_1970_is_delivered<D: SqlDatabase>() {
        let on = On::<D>::open("before_1970").await;
        let heard = Heard::default();
        let outbox = Outbox::single_node(&on.pool)
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let early = match outbox.store().name() {
            "sqlite" => "-62135596800000000",
            _ => "'0001-01-01 00:00:00'",
        };
        let row = format!(
            "insert into outbox_event (event_id, event_type, payload, available_at)
             values ('early', 'Placed', '{{}}', {early})"
        );
        script(&on.pool, &row).await;
        settled(&**outbox.store(), &EventId::new("early").unwrap(), Status::Done).await;
        assert_eq!(heard.count(), 1);
        outbox.shutdown().await.unwrap();
    }

    /// History, told today.
    pub(super) async fn an_event_from_before_1970_is_delivered<D: Database>() {
        let on = On::<D>::open("history").await;
        let heard = Heard::default();
        let outbox = Outbox::single_node(&on.pool)
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        let then = chrono::DateTime::from_timestamp(-86_400, 0).unwrap();
        let event = Event::builder("Placed")
            .json("{}")
            .occurred_at(then)
            .available_at(then)
            .build()
            .unwrap();
        let id = publish(&outbox, &on.pool, &event).await;
        let row = settled(&**outbox.store(), &id, Status::Done).await;
        assert_eq!(row.event.unwrap().occurred_at(), then);
        assert_eq!(heard.count(), 1);
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn a_bad_row_is_dead_and_others_flow_on<D: SqlDatabase>(row: &str, column: &str) {
        let on = On::<D>::open("bad_row").await;
        let heard = Heard::default();
        script(&on.pool, row).await;
        let good = "insert into outbox_event (event_id, event_type, payload) values ('good', 'Placed', '{}')";
        script(&on.pool, good).await;
        let outbox = Outbox::single_node(&on.pool)
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        settled(&**outbox.store(), &EventId::new("good").unwrap(), Status::Done).await;
        let bad = settled(&**outbox.store(), &EventId::new("bad").unwrap(), Status::Dead).await;
        let error = bad.last_error.unwrap();
        assert!(
            error.contains(&format!("the column {column} cannot be read")),
            "{error}"
        );
        assert_eq!(heard.count(), 1, "nobody hears of the bad one");
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn texts_of_any_characters_come_back_as_they_were<D: Database>() {
        let on = On::<D>::open("odd_texts").await;
        let odd: String = (1..0x20_u8)
            .map(char::from)
            .chain("\"\\/'`\u{7f}\u{80}\u{2028}\u{feff}\u{ffff}\u{1f600}\u{10ffff}".chars())
            .collect();
        let tenant = odd.replace(char::is_control, "");
        let error = odd.clone();
        let outbox = Outbox::single_node(&on.pool)
            .without_hot_path()
            .poll_interval(POLL)
            .listen("Placed", move |_: Delivery| {
                let error = error.clone();
                async move { Err(Failure::permanent(error)) }
            })
            .build()
            .await
            .unwrap();
        let event = Event::builder("Placed")
            .json("{}")
            .tenant(tenant.clone())
            .build()
            .unwrap();
        let id = publish(&outbox, &on.pool, &event).await;
        let row = settled(&**outbox.store(), &id, Status::Dead).await;
        assert_eq!(row.last_error, Some(odd.clone()));
        assert_eq!(outbox.store().attempts(&id).await.unwrap()[0].error, odd);
        let stored = row.event.unwrap();
        assert_eq!(stored.tenant_id().map(ToString::to_string), Some(tenant));
        outbox.shutdown().await.unwrap();
    }

    pub(super) async fn an_empty_payload_goes_in_a_batch_with_others<D: Database>() {
        let on = On::<D>::open("empty_payload").await;
        let bytes: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let listener = {
            let bytes = Arc::clone(&bytes);
            move |delivery: Delivery| {
                bytes.lock().unwrap().push(delivery.payload().as_bytes().to_vec());
                async { Ok(()) }
            }
        };
        let outbox = Outbox::single_node(&on.pool)
            // What is read from the table, not what is still in memory.
            .without_hot_path()
            .poll_interval(POLL)
            .workers(1)
            .listen("Placed", listener)
            .build()
            .await
            .unwrap();
        let empty = Event::builder("Placed").bytes(Vec::<u8>::new()).build().unwrap();
        let twins = [empty, event("Placed")];
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox.publish_all(&mut tx, &twins).await.unwrap();
        tx.commit().await.unwrap();
        for twin in &twins {
            settled(&**outbox.store(), twin.id(), Status::Done).await;
        }
        outbox.shutdown().await.unwrap();
        assert_eq!(*bytes.lock().unwrap(), [&b""[..], br#"{"total": 42}"#]);
    }

    pub(super) fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    pub(super) async fn json_as_deep_as_is_allowed_is_delivered<D: Database>() {
        let on = On::<D>::open("deep").await;
        let heard = Heard::default();
        let outbox = Outbox::single_node(&on.pool)
            .poll_interval(POLL)
            .listen("Placed", heard.listener())
            .build()
            .await
            .unwrap();
        // In a text brackets do not count.
        let flat = format!("[\"\\\"{}\"]", "[".repeat(500));
        for json in [nested(Payload::MAX_DEPTH), flat] {
            let id = publish(&outbox, &on.pool, &Event::json("Placed", json).unwrap()).await;
            settled(&**outbox.store(), &id, Status::Done).await;
        }
        outbox.shutdown().await.unwrap();
    }
}
