//! What an outbox counts.

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use outbox::{Backend, Builder, Outbox};

/// The counters of one outbox.
pub(super) struct Counters(Snapshotter);

impl Counters {
    /// Builds an outbox which counts here. Needs a runtime of several threads.
    pub(super) fn build<D: Backend>(builder: Builder<D>) -> (Outbox<D>, Self) {
        let recorder = DebuggingRecorder::new();
        let counters = Self(recorder.snapshotter());
        // The recorder is one of this thread, and build() may go on in another: it is not let go.
        let outbox = metrics::with_local_recorder(&recorder, || {
            let runtime = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| runtime.block_on(builder.build()))
        });
        (outbox.unwrap(), counters)
    }

    /// What was counted under names like this since anybody last asked.
    pub(super) fn take(&self, name: &str) -> u64 {
        let counted = self.0.snapshot().into_vec().into_iter();
        counted
            .filter(|(key, ..)| key.key().name().contains(name))
            .map(|(.., value)| match value {
                DebugValue::Counter(count) => count,
                DebugValue::Gauge(_) | DebugValue::Histogram(_) => 0,
            })
            .sum()
    }
}
