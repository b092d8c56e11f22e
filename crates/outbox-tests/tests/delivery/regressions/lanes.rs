//! Nodes that share lanes tell each other.

use std::time::Duration;

use outbox::testing::Memory;
use outbox::{Event, Outbox};
use outbox_tests::On;
use tokio::time::Instant;

use crate::heard::{Heard, publish};

/// A node that has settled down looks at the lanes every two seconds. One that comes need not wait for that, nor for a look of
/// its own.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_has_its_lanes_at_once() {
    let on = On::<Memory>::open("news").await;
    let node = |heard: &Heard| {
        Outbox::multi_node(&on.pool)
            .without_hot_path()
            .listen_to("Order", "Placed", heard.listener())
    };
    let (here, comes) = (Heard::default(), Heard::default());
    let here = node(&here).build().await.unwrap();
    // Until long after it has come. The clock is that of the test: nothing is waited for.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let started = Instant::now();
    let newcomer = node(&comes).build().await.unwrap();
    for key in 0.. {
        if comes.count() > 0 {
            break;
        }
        let event = Event::builder("Placed")
            .aggregate_type("Order")
            .aggregate_id(key.to_string());
        publish(&here, &on.pool, &event.json("{}").build().unwrap()).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = started.elapsed();
    assert!(took < Duration::from_millis(100), "{took:?}");
    here.shutdown().await.unwrap();
    newcomer.shutdown().await.unwrap();
}
