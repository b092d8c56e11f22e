//! Traces: the context of the publishing code travels in the header `traceparent` (W3C) and is that of the delivery.

use tracing::Span;

use crate::event::Event;
use crate::listen::Delivery;

/// The header of the W3C trace context.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// The span around the listeners of one delivery.
pub(crate) fn delivery_span(delivery: &Delivery) -> Span {
    let span = tracing::info_span!(
        "outbox.deliver",
        otel.kind = "consumer",
        event.id = %delivery.id(),
        event.type = %delivery.event_type(),
        attempt = delivery.attempt,
        path = delivery.path.as_str(),
        traceparent = delivery.headers().get(TRACEPARENT),
    );
    #[cfg(feature = "opentelemetry")]
    otel::set_parent(&span, delivery.headers().get(TRACEPARENT));
    span
}

/// The event with the current trace context, unless it carries one already, or there is none.
pub(crate) fn capture(event: Event) -> Event {
    #[cfg(feature = "opentelemetry")]
    if event.headers().get(TRACEPARENT).is_none()
        && let Some(traceparent) = otel::current()
        && let Ok(traced) = event.to_builder().header(TRACEPARENT, traceparent).build()
    {
        return traced;
    }
    event
}

#[cfg(feature = "opentelemetry")]
mod otel {
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    pub(super) fn current() -> Option<String> {
        let context = tracing::Span::current().context();
        let span = context.span();
        let span = span.span_context();
        span.is_valid().then(|| {
            format!(
                "00-{}-{}-{:02x}",
                span.trace_id(),
                span.span_id(),
                span.trace_flags().to_u8()
            )
        })
    }

    pub(super) fn set_parent(span: &tracing::Span, traceparent: Option<&str>) {
        if let Some(parent) = traceparent.and_then(parse) {
            let context = opentelemetry::Context::new().with_remote_span_context(parent);
            // Fails only where no subscriber exports the span: then nobody asks for its parent.
            let _ = span.set_parent(context);
        }
    }

    fn parse(traceparent: &str) -> Option<SpanContext> {
        let mut parts = traceparent.split('-');
        let (_version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let context = SpanContext::new(
            TraceId::from_hex(trace).ok()?,
            SpanId::from_hex(span).ok()?,
            TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
            true,
            TraceState::default(),
        );
        context.is_valid().then_some(context)
    }
}
