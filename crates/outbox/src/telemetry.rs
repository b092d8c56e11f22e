//! Every name that leaves the process: metrics, through the `metrics` facade, and spans.
//!
//! Without a recorder installed a metric costs next to nothing. Install one, such as `metrics-exporter-prometheus`, before
//! an outbox is built: it looks its metrics up once. All have a label `outbox`: the table's name.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::listen::Path;
use crate::store::{Stats, Status};

/// Events handed to the hot queue.
pub const HOT_ENQUEUED: &str = "outbox_hot_enqueued_total";
/// Events the hot queue had no room for; the poller delivers them.
pub const HOT_DROPPED: &str = "outbox_hot_dropped_total";
/// Delayed events, which never take the hot path.
pub const HOT_SKIPPED: &str = "outbox_hot_skipped_total";
/// Events read from the table and queued.
pub const COLD_ENQUEUED: &str = "outbox_cold_enqueued_total";
/// Deliveries that succeeded.
pub const DISPATCH_SUCCESS: &str = "outbox_dispatch_success_total";
/// Attempts that failed and will be repeated.
pub const DISPATCH_FAILURE: &str = "outbox_dispatch_failure_total";
/// Events given up.
pub const DISPATCH_DEAD: &str = "outbox_dispatch_dead_total";
/// Deliveries put off.
pub const DISPATCH_DEFERRED: &str = "outbox_dispatch_deferred_total";
/// Writes about a delivery that were refused, because somebody else had taken the event.
pub const SETTLE_STALE: &str = "outbox_settle_stale_total";
/// Batches of outcomes that could not be written, and were tried again.
pub const SETTLE_ERRORS: &str = "outbox_settle_errors_total";
/// Polls that failed.
pub const POLL_ERRORS: &str = "outbox_poll_errors_total";
/// Leases that ended, or were lost, before the event was delivered here.
pub const LEASES_LOST: &str = "outbox_leases_lost_total";
/// Events taken over from a node whose lease had ended.
pub const RECOVERED: &str = "outbox_recovered_total";
/// Finished events deleted.
pub const PURGED: &str = "outbox_purged_total";
/// Dead events made new again.
pub const REPLAYED: &str = "outbox_replayed_total";
/// Events in the hot queue.
pub const HOT_DEPTH: &str = "outbox_hot_depth";
/// Events in the cold queue.
pub const COLD_DEPTH: &str = "outbox_cold_depth";
/// Events queued, being delivered or waiting for their outcome to be written.
pub const IN_FLIGHT: &str = "outbox_in_flight";
/// Lanes that this node owns.
pub const LANES_OWNED: &str = "outbox_lanes_owned";
/// Keys whose events wait, because one of them failed; counted by every node, for all lanes.
pub const KEYS_BLOCKED: &str = "outbox_keys_blocked";
/// How long the key that is blocked the longest has been so, in seconds.
pub const OLDEST_BLOCKED: &str = "outbox_oldest_blocked_key_seconds";
/// How long the event that is due the longest has been due, in seconds.
pub const OLDEST_LAG: &str = "outbox_oldest_lag_seconds";
/// Events by `status` and `event_type`, counted up to a bound.
pub const EVENTS: &str = "outbox_events";
/// From due to the start of its listener, in seconds, by `path`.
pub const DISPATCH_LATENCY: &str = "outbox_dispatch_latency_seconds";
/// How long a listener took, in seconds, by `listener`.
pub const LISTENER_DURATION: &str = "outbox_listener_duration_seconds";
/// Outcomes per write.
pub const SETTLE_BATCH: &str = "outbox_settle_batch_events";

/// The target of an event at the level TRACE: the database has answered a COMMIT, and nothing is handed over yet.
pub const COMMITTED: &str = "outbox::committed";

/// The handles of one outbox, looked up once.
pub(crate) struct Telemetry {
    outbox: String,
    pub(crate) hot_enqueued: Counter,
    pub(crate) hot_dropped: Counter,
    pub(crate) hot_skipped: Counter,
    pub(crate) cold_enqueued: Counter,
    pub(crate) success: Counter,
    pub(crate) failure: Counter,
    pub(crate) dead: Counter,
    pub(crate) deferred: Counter,
    pub(crate) settle_stale: Counter,
    pub(crate) settle_errors: Counter,
    pub(crate) poll_errors: Counter,
    pub(crate) leases_lost: Counter,
    pub(crate) recovered: Counter,
    pub(crate) purged: Counter,
    pub(crate) hot_depth: Gauge,
    pub(crate) cold_depth: Gauge,
    pub(crate) in_flight: Gauge,
    pub(crate) lanes_owned: Gauge,
    pub(crate) keys_blocked: Gauge,
    pub(crate) oldest_blocked: Gauge,
    oldest_lag: Gauge,
    hot_latency: Histogram,
    cold_latency: Histogram,
    pub(crate) settle_batch: Histogram,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry")
            .field("outbox", &self.outbox)
            .finish_non_exhaustive()
    }
}

impl Telemetry {
    pub(crate) fn new(table: &str) -> Self {
        let outbox = table.to_owned();
        let counter = |name: &'static str| metrics::counter!(name, "outbox" => outbox.clone());
        let gauge = |name: &'static str| metrics::gauge!(name, "outbox" => outbox.clone());
        let latency =
            |path: Path| metrics::histogram!(DISPATCH_LATENCY, "outbox" => outbox.clone(), "path" => path.as_str());
        Self {
            hot_enqueued: counter(HOT_ENQUEUED),
            hot_dropped: counter(HOT_DROPPED),
            hot_skipped: counter(HOT_SKIPPED),
            cold_enqueued: counter(COLD_ENQUEUED),
            success: counter(DISPATCH_SUCCESS),
            failure: counter(DISPATCH_FAILURE),
            dead: counter(DISPATCH_DEAD),
            deferred: counter(DISPATCH_DEFERRED),
            settle_stale: counter(SETTLE_STALE),
            settle_errors: counter(SETTLE_ERRORS),
            poll_errors: counter(POLL_ERRORS),
            leases_lost: counter(LEASES_LOST),
            recovered: counter(RECOVERED),
            purged: counter(PURGED),
            hot_depth: gauge(HOT_DEPTH),
            cold_depth: gauge(COLD_DEPTH),
            in_flight: gauge(IN_FLIGHT),
            lanes_owned: gauge(LANES_OWNED),
            keys_blocked: gauge(KEYS_BLOCKED),
            oldest_blocked: gauge(OLDEST_BLOCKED),
            oldest_lag: gauge(OLDEST_LAG),
            hot_latency: latency(Path::Hot),
            cold_latency: latency(Path::Cold),
            settle_batch: metrics::histogram!(SETTLE_BATCH, "outbox" => outbox.clone()),
            outbox,
        }
    }

    pub(crate) fn latency(&self, path: Path, latency: Duration) {
        match path {
            Path::Hot => self.hot_latency.record(latency),
            Path::Cold => self.cold_latency.record(latency),
        }
    }

    pub(crate) fn listener_duration(&self, listener: &str) -> Histogram {
        metrics::histogram!(LISTENER_DURATION, "outbox" => self.outbox.clone(), "listener" => listener.to_owned())
    }

    /// Publishes counts from the table. A type that has gone from `before` is set to zero.
    pub(crate) fn stats(&self, stats: &Stats, before: &Stats) {
        self.oldest_lag.set(stats.oldest_lag.unwrap_or_default().as_secs_f64());
        let gauge = |status: Status, event_type: &str| {
            metrics::gauge!(EVENTS, "outbox" => self.outbox.clone(), "status" => status.as_str(),
                "event_type" => event_type.to_owned())
        };
        for gone in &before.counts {
            gauge(gone.status, &gone.event_type).set(0.0);
        }
        for count in &stats.counts {
            gauge(count.status, &count.event_type).set(count.count as f64);
        }
    }
}
