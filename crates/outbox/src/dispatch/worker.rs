use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument;

use super::guard::{Broken, guarded};
use super::{Dispatcher, Job, Popped};
use crate::failpoint::fail_point;
use crate::listen::{Delivery, Failure, FailureKind, Handled, Listening};
use crate::retry::{Exponential, RetryPolicy};
use crate::store::{LONGEST_DELAY, Ownership, Verdict};

/// Hooks get this long; they are meant to take none.
const HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// After so many deliveries without a rest.
const TURNS: u32 = 32;

impl Dispatcher {
    /// One worker: one event, or one batch of a listener that takes several, at a time. Ends when the queues are closed
    /// and empty.
    pub(crate) async fn work(&self) {
        let batch = |job: &Job| {
            self.router
                .batcher(&job.event)
                .map_or(1, |one| one.listener.max_batch())
        };
        let same =
            |first: &Job, other: &Job| match (self.router.batcher(&first.event), self.router.batcher(&other.event)) {
                (Some(one), Some(another)) => Arc::ptr_eq(one, another),
                _ => false,
            };
        let mut turns = 0_u32;
        while let Some(popped) = self.queues.pop(batch, same).await {
            match popped {
                Popped::One(job) => {
                    if self.start(&job) {
                        let verdict = self.deliver(&job).await;
                        fail_point!("after-listener");
                        self.settle(job.admission, verdict).await;
                    }
                }
                Popped::Batch(mut jobs) => {
                    jobs.retain(|job| self.start(job));
                    if !jobs.is_empty() {
                        let verdicts = self.deliver_batch(&jobs).await;
                        fail_point!("after-listener");
                        for (job, verdict) in jobs.iter().zip(verdicts) {
                            self.settle(job.admission, verdict).await;
                        }
                    }
                }
            }
            // A worker that never has to wait must still let others run, and the runtime look at what the database has sent.
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Whether it is still ours to deliver.
    fn start(&self, job: &Job) -> bool {
        if self.ownership == Ownership::Keys {
            self.lines.taken(job.admission.seq);
        }
        let ours = self.in_flight.start(job.admission, self.margin());
        if !ours {
            self.telemetry.leases_lost.increment(1);
            self.left(job.admission, false);
        }
        ours
    }

    fn begin(&self, job: &Job) -> Delivery {
        self.telemetry.latency(job.path, job.lag + job.queued_at.elapsed());
        Delivery::new(job.event.clone(), job.attempts + 1, job.path)
    }

    async fn deliver(&self, job: &Job) -> Verdict {
        let delivery = self.begin(job);
        let span = crate::trace::delivery_span(&delivery);
        async {
            let mut done_by = job.done_by.clone();
            let answer = match self.before(&delivery).await {
                Ok(()) => self.listeners(&delivery, &mut done_by).await,
                Err(failure) => Err(failure),
            };
            self.after(&delivery, &answer).await;
            self.judge(&delivery, answer, done_by)
        }
        .instrument(span)
        .await
    }

    /// Runs every listener that has not succeeded yet. The worst answer is that of the event.
    async fn listeners(&self, delivery: &Delivery, done_by: &mut Vec<String>) -> Handled {
        let listeners = self.router.route(delivery.event());
        if listeners.is_empty() {
            return Err(Failure::permanent(format_args!(
                "no listener for {} {}: add one and replay the event",
                delivery.aggregate_type(),
                delivery.event_type()
            )));
        }
        let mut worst: Handled = Ok(());
        for listening in listeners.iter() {
            if done_by.contains(&listening.name) {
                continue;
            }
            let answer = self
                .call(listening, std::slice::from_ref(delivery))
                .await
                .pop()
                .unwrap_or_else(unanswered);
            match answer {
                // Remembered only where others may still fail.
                Ok(()) if listeners.len() > 1 => done_by.push(listening.name.clone()),
                Ok(()) => {}
                Err(failure) => worst = worse(worst, failure, &listening.name, listeners.len()),
            }
        }
        worst
    }

    async fn deliver_batch(&self, jobs: &[Job]) -> Vec<Verdict> {
        let mut ready = Vec::with_capacity(jobs.len());
        let mut answers: Vec<Option<Handled>> = Vec::with_capacity(jobs.len());
        let deliveries: Vec<Delivery> = jobs.iter().map(|job| self.begin(job)).collect();
        for delivery in &deliveries {
            match self.before(delivery).await {
                Ok(()) => {
                    ready.push(delivery.clone());
                    answers.push(None);
                }
                Err(failure) => answers.push(Some(Err(failure))),
            }
        }
        let mut handled = match self.router.batcher(&jobs[0].event) {
            Some(listening) if !ready.is_empty() => self.call(listening, &ready).await.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let mut verdicts = Vec::with_capacity(jobs.len());
        for (delivery, answer) in deliveries.iter().zip(answers) {
            let answer = answer.or_else(|| handled.next()).unwrap_or_else(unanswered);
            self.after(delivery, &answer).await;
            verdicts.push(self.judge(delivery, answer, Vec::new()));
        }
        verdicts
    }

    async fn call(&self, listening: &Listening, batch: &[Delivery]) -> Vec<Handled> {
        let _turn = match &listening.at_once {
            Some(turns) => turns.acquire().await.ok(),
            None => None,
        };
        let started = Instant::now();
        let answer = guarded(async { listening.listener.deliver(batch).await }, listening.timeout).await;
        listening.duration.record(started.elapsed());
        let all = |failure: &dyn Fn() -> Failure| batch.iter().map(|_| Err(failure())).collect();
        match answer {
            Ok(answers) => answers,
            Err(Broken::Panicked(message)) => {
                tracing::error!(listener = listening.name, panic = message, "a listener panicked");
                all(&|| Failure::retry(format_args!("the listener panicked: {message}")))
            }
            Err(Broken::TimedOut) => {
                all(&|| Failure::retry(format_args!("the listener took longer than {:?}", listening.timeout)))
            }
        }
    }

    async fn before(&self, delivery: &Delivery) -> Handled {
        for interceptor in &self.interceptors {
            match guarded(async { interceptor.before(delivery).await }, HOOK_TIMEOUT).await {
                Ok(answer) => answer?,
                Err(Broken::Panicked(message)) => {
                    return Err(Failure::retry(format_args!("an interceptor panicked: {message}")));
                }
                Err(Broken::TimedOut) => return Err(Failure::retry("an interceptor took too long")),
            }
        }
        Ok(())
    }

    async fn after(&self, delivery: &Delivery, answer: &Handled) {
        for interceptor in self.interceptors.iter().rev() {
            match guarded(
                async { interceptor.after(delivery, answer.as_ref().err()).await },
                HOOK_TIMEOUT,
            )
            .await
            {
                Ok(()) => {}
                Err(Broken::Panicked(panic)) => tracing::error!(panic, "an interceptor panicked after a delivery"),
                Err(Broken::TimedOut) => tracing::error!("an interceptor took too long after a delivery"),
            }
        }
    }

    /// What an answer means for the row. Logs and counts it, once.
    fn judge(&self, delivery: &Delivery, answer: Handled, done_by: Vec<String>) -> Verdict {
        let Failure { kind, error } = match answer {
            Ok(()) => {
                self.telemetry.success.increment(1);
                return self.done.clone();
            }
            Err(failure) => failure,
        };
        let failed = delivery.attempt;
        let policy = self
            .retry_by_type
            .get(delivery.event_type().as_str())
            .unwrap_or(&self.retry);
        let after = match kind {
            FailureKind::Defer(after) => {
                self.telemetry.deferred.increment(1);
                tracing::debug!(event.id = %delivery.id(), ?after, "deferred");
                return Verdict::Defer {
                    after: after.min(LONGEST_DELAY),
                    done_by,
                };
            }
            FailureKind::Permanent => None,
            FailureKind::Retry => ask(&**policy, failed),
            FailureKind::RetryAfter(after) => ask(&**policy, failed).map(|_| after.min(LONGEST_DELAY)),
        };
        let (id, event_type) = (delivery.id(), delivery.event_type());
        match after {
            Some(after) => {
                self.telemetry.failure.increment(1);
                tracing::info!(event.id = %id, event.type = %event_type, attempt = failed, ?after, error, "failed, to be tried again");
                Verdict::Retry { after, error, done_by }
            }
            None => {
                self.telemetry.dead.increment(1);
                tracing::error!(event.id = %id, event.type = %event_type, attempt = failed, error, "dead");
                match self.parks {
                    true => Verdict::DeadAndParked { error, done_by },
                    false => Verdict::Dead { error, done_by },
                }
            }
        }
    }
}

/// Asks the retry policy, which is somebody else's code.
fn ask(policy: &dyn RetryPolicy, failed: u32) -> Option<Duration> {
    match catch_unwind(AssertUnwindSafe(|| policy.delay(failed))) {
        Ok(delay) => delay.map(|delay| delay.min(LONGEST_DELAY)),
        Err(_) => {
            tracing::error!(
                ?policy,
                failed,
                "a retry policy panicked; the default one is asked instead"
            );
            Exponential::default().delay(failed)
        }
    }
}

fn unanswered() -> Handled {
    Err(Failure::retry(
        "the listener answered for fewer events than it was given",
    ))
}

/// Dead at once beats a retry, a retry beats a deferral.
fn worse(worst: Handled, failure: Failure, listener: &str, listeners: usize) -> Handled {
    let rank = |kind: FailureKind| match kind {
        FailureKind::Permanent => 2,
        FailureKind::Retry | FailureKind::RetryAfter(_) => 1,
        FailureKind::Defer(_) => 0,
    };
    let error = if listeners > 1 {
        format!("{listener}: {}", failure.error)
    } else {
        failure.error
    };
    match worst {
        Err(earlier) => {
            let kind = if rank(failure.kind) > rank(earlier.kind) {
                failure.kind
            } else {
                earlier.kind
            };
            Err(Failure {
                kind,
                error: format!("{}; {error}", earlier.error),
            })
        }
        Ok(()) => Err(Failure {
            kind: failure.kind,
            error,
        }),
    }
}
