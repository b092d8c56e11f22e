//! What an observer sees: logs, metrics, traces. A binary of its own, with one subscriber for the whole process: which spans
//! and events are wanted is remembered process-wide, and tests with subscribers of their own would disturb each other.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

#[path = "../delivery/heard.rs"]
#[allow(dead_code, reason = "shared with the tests of the delivery, which use more of it")]
mod heard;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use heard::{Heard, drained, event, publish};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use opentelemetry::trace::{TraceContextExt, TraceId, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use outbox::testing::MemoryPool;
use outbox::{Delivery, Outbox, telemetry};
use outbox_tests::{Database, On};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

type Messages = Arc<Mutex<Vec<String>>>;

/// The warnings of this process so far. The first call begins the observation.
fn observer() -> &'static Messages {
    static WARNINGS: OnceLock<Messages> = OnceLock::new();
    WARNINGS.get_or_init(|| {
        let warnings = Messages::default();
        let tracer = SdkTracerProvider::builder().build().tracer("test");
        tracing_subscriber::registry()
            .with(tracing_opentelemetry::layer().with_tracer(tracer))
            .with(Warnings(Arc::clone(&warnings)))
            .init();
        warnings
    })
}

struct Warnings(Messages);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        if *event.metadata().level() == tracing::Level::WARN {
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().unwrap().push(message.0);
        }
    }
}

mod hot_queue_of_one_never_fails_a_publish {
    // Metrics are caught on the test's own thread.
    #[tokio::test]
    async fn sqlite() {
        super::hot_queue_of_one_never_fails_a_publish::<sqlx::Sqlite>().await;
    }

    #[tokio::test]
    async fn postgres() {
        super::hot_queue_of_one_never_fails_a_publish::<sqlx::Postgres>().await;
    }

    #[tokio::test]
    async fn mariadb() {
        super::hot_queue_of_one_never_fails_a_publish::<sqlx::MySql>().await;
    }
}

async fn hot_queue_of_one_never_fails_a_publish<D: Database>() {
    let on = On::<D>::open("hot_queue_of_one").await;
    let warnings = observer();
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _metrics = metrics::set_default_local_recorder(&recorder);

    let heard = Heard::default();
    let slow = {
        let heard = heard.clone();
        move |delivery: Delivery| {
            let heard = heard.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                outbox::Handler::handle(&heard.listener(), delivery).await
            }
        }
    };
    let outbox = Outbox::single_node(&on.pool)
        .hot_capacity(1)
        .workers(1)
        .listen("Placed", slow)
        .build()
        .await
        .unwrap();
    for _ in 0..20 {
        let mut tx = outbox.begin(&on.pool).await.unwrap();
        outbox
            .publish_all(&mut tx, (0..5).map(|_| event("Placed")))
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    heard.wait(100).await;
    drained(&**outbox.store()).await;
    outbox.shutdown().await.unwrap();
    assert_eq!(heard.count(), 100, "each once");
    assert!(
        warnings
            .lock()
            .unwrap()
            .iter()
            .any(|one| one.contains("the hot queue is full")),
        "a warning is logged"
    );
    let dropped = snapshots
        .snapshot()
        .into_vec()
        .into_iter()
        .find_map(|(key, _, _, value)| (key.key().name() == telemetry::HOT_DROPPED).then_some(value));
    assert!(
        matches!(dropped, Some(DebugValue::Counter(1..))),
        "a metric is counted: {dropped:?}"
    );
}

fn trace_id(span: &Span) -> TraceId {
    span.context().span().span_context().trace_id()
}

#[tokio::test]
async fn trace_of_the_publisher_is_that_of_the_listener() {
    observer();

    let pool = MemoryPool::new();
    let heard = Heard::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let listener = {
        let (heard, seen) = (heard.clone(), Arc::clone(&seen));
        move |delivery: Delivery| {
            seen.lock().unwrap().push(trace_id(&Span::current()));
            let heard = heard.clone();
            async move { outbox::Handler::handle(&heard.listener(), delivery).await }
        }
    };
    let outbox = Outbox::single_node(&pool)
        .listen("Placed", listener)
        .build()
        .await
        .unwrap();

    let requests = [tracing::info_span!("first"), tracing::info_span!("second")];
    for request in &requests {
        publish(&outbox, &pool, &event("Placed"))
            .instrument(request.clone())
            .await;
    }
    let deliveries = heard.wait(2).await;
    let expected: Vec<TraceId> = requests.iter().map(trace_id).collect();
    assert_ne!(expected[0], expected[1]);
    let seen = seen.lock().unwrap().clone();
    assert!(
        seen.len() == 2 && expected.iter().all(|id| seen.contains(id)),
        "{seen:?}, not {expected:?}"
    );
    for delivery in deliveries {
        let header = delivery.headers().get("traceparent").unwrap();
        assert!(
            expected.iter().any(|id| header.starts_with(&format!("00-{id}-"))),
            "{header}"
        );
    }
    outbox.shutdown().await.unwrap();
}
