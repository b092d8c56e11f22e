//! A trace goes through the table.

use std::sync::{Arc, Mutex};

use opentelemetry::trace::{TraceContextExt, TraceId, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use outbox::testing::MemoryPool;
use outbox::{Delivery, Outbox};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use crate::heard::{Heard, event, publish};

fn trace_id(span: &Span) -> TraceId {
    span.context().span().span_context().trace_id()
}

#[tokio::test]
async fn trace_of_the_publisher_is_that_of_the_listener() {
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    let layer = tracing_opentelemetry::layer().with_tracer(tracer);
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

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
    assert_eq!(*seen.lock().unwrap(), expected);
    let header = deliveries[0].headers().get("traceparent").unwrap();
    assert!(header.starts_with(&format!("00-{}-", expected[0])), "{header}");
    outbox.shutdown().await.unwrap();
}
