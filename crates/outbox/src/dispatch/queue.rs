use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::inflight::Admission;
use crate::event::Event;
use crate::listen::Path;

/// An event waiting for a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) admission: Admission,
    pub(crate) event: Event,
    /// Failed attempts so far.
    pub(crate) attempts: u32,
    pub(crate) done_by: Vec<String>,
    pub(crate) path: Path,
    /// How long it had been due when it was queued.
    pub(crate) lag: Duration,
    pub(crate) queued_at: Instant,
}

/// The hot and the cold queue: both bounded, drained two to one, so that neither starves the other.
#[derive(Debug)]
pub(crate) struct Queues {
    state: Mutex<State>,
    /// A job has come, or the queues are closed.
    ready: Notify,
    /// The cold queue has become half empty.
    room: Notify,
    hot_capacity: usize,
    cold_capacity: usize,
}

#[derive(Debug, Default)]
struct State {
    hot: VecDeque<Job>,
    cold: VecDeque<Job>,
    /// Counts pops: every third one asks the cold queue first.
    turn: u8,
    closed: bool,
}

impl Queues {
    pub(crate) fn new(hot_capacity: usize, cold_capacity: usize) -> Self {
        Self {
            state: Mutex::default(),
            ready: Notify::new(),
            room: Notify::new(),
            hot_capacity,
            cold_capacity,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the job back if there is no room, or no more are taken.
    pub(crate) fn push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.state();
        let closed = state.closed;
        let (queue, capacity) = match job.path {
            Path::Hot => (&mut state.hot, self.hot_capacity),
            Path::Cold => (&mut state.cold, self.cold_capacity),
        };
        if closed || queue.len() >= capacity {
            return Err(job);
        }
        queue.push_back(job);
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// How many more the cold queue takes.
    pub(crate) fn cold_room(&self) -> usize {
        let state = self.state();
        if state.closed {
            0
        } else {
            self.cold_capacity - state.cold.len()
        }
    }

    /// Returns when the cold queue is at most half full.
    pub(crate) async fn half_empty(&self) {
        loop {
            let room = self.room.notified();
            if self.cold_room() * 2 >= self.cold_capacity {
                return;
            }
            room.await;
        }
    }

    pub(crate) fn depths(&self) -> (usize, usize) {
        let state = self.state();
        (state.hot.len(), state.cold.len())
    }

    /// No more jobs are taken; workers get `None` once the queues are empty.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.ready.notify_waiters();
    }

    /// Waits for the next job, and takes up to `max - 1` others that `alike` says go with it.
    pub(crate) async fn pop(
        &self,
        alike: impl Fn(&Job) -> usize,
        same: impl Fn(&Job, &Job) -> bool,
    ) -> Option<Vec<Job>> {
        loop {
            let ready = self.ready.notified();
            tokio::pin!(ready);
            // Registered before looking, so that a job pushed in between is not missed.
            ready.as_mut().enable();
            {
                let mut state = self.state();
                if let Some(first) = state.pop() {
                    let max = alike(&first);
                    let mut jobs = vec![first];
                    if max > 1 {
                        state.take_alike(&mut jobs, max, &same);
                    }
                    let more = !state.hot.is_empty() || !state.cold.is_empty();
                    let half_empty = state.cold.len() * 2 <= self.cold_capacity;
                    drop(state);
                    if more {
                        self.ready.notify_one();
                    }
                    if half_empty {
                        self.room.notify_waiters();
                    }
                    return Some(jobs);
                }
                if state.closed {
                    return None;
                }
            }
            ready.await;
        }
    }

    /// Everything that is still queued.
    pub(crate) fn drain(&self) -> Vec<Job> {
        let mut state = self.state();
        let mut jobs: Vec<Job> = state.hot.drain(..).collect();
        jobs.extend(state.cold.drain(..));
        jobs
    }
}

impl State {
    fn pop(&mut self) -> Option<Job> {
        self.turn = (self.turn + 1) % 3;
        if self.turn == 0 {
            self.cold.pop_front().or_else(|| self.hot.pop_front())
        } else {
            self.hot.pop_front().or_else(|| self.cold.pop_front())
        }
    }

    fn take_alike(&mut self, jobs: &mut Vec<Job>, max: usize, same: &impl Fn(&Job, &Job) -> bool) {
        for queue in [&mut self.hot, &mut self.cold] {
            let mut rest = VecDeque::with_capacity(queue.len());
            while let Some(job) = queue.pop_front() {
                if jobs.len() < max && same(&jobs[0], &job) {
                    jobs.push(job);
                } else {
                    rest.push_back(job);
                    if jobs.len() >= max {
                        break;
                    }
                }
            }
            rest.append(queue);
            *queue = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::InFlight;
    use crate::store::Lease;

    fn job(seq: i64, path: Path) -> Job {
        Job {
            admission: InFlight::default()
                .admit(Lease { seq, token: 0 }, Instant::now())
                .unwrap(),
            event: Event::json("x", "{}").unwrap(),
            attempts: 0,
            done_by: Vec::new(),
            path,
            lag: Duration::ZERO,
            queued_at: Instant::now(),
        }
    }

    async fn pop(queues: &Queues, max: usize) -> Option<Vec<i64>> {
        let jobs = queues.pop(|_| max, |_, _| true).await?;
        Some(jobs.iter().map(|job| job.admission.seq).collect())
    }

    #[tokio::test]
    async fn hot_and_cold_are_drained_two_to_one() {
        let queues = Queues::new(10, 10);
        for seq in 0..6 {
            queues.push(job(seq, Path::Hot)).unwrap();
            queues.push(job(100 + seq, Path::Cold)).unwrap();
        }
        let mut popped = Vec::new();
        for _ in 0..12 {
            popped.extend(pop(&queues, 1).await.unwrap());
        }
        assert_eq!(popped, [0, 1, 100, 2, 3, 101, 4, 5, 102, 103, 104, 105]);
    }

    #[tokio::test]
    async fn a_full_queue_gives_the_job_back() {
        let queues = Queues::new(1, 1);
        queues.push(job(1, Path::Hot)).unwrap();
        assert_eq!(queues.push(job(2, Path::Hot)).unwrap_err().admission.seq, 2);
        queues.push(job(3, Path::Cold)).unwrap();
        assert_eq!(queues.cold_room(), 0);
    }

    #[tokio::test]
    async fn a_closed_queue_is_drained_and_then_ends() {
        let queues = Queues::new(10, 10);
        queues.push(job(1, Path::Hot)).unwrap();
        queues.close();
        assert!(queues.push(job(2, Path::Hot)).is_err());
        assert_eq!(pop(&queues, 1).await, Some(vec![1]));
        assert_eq!(pop(&queues, 1).await, None);
    }

    #[tokio::test]
    async fn alike_jobs_go_together_and_the_others_keep_their_order() {
        let queues = Queues::new(10, 10);
        for seq in 1..=8 {
            queues.push(job(seq, Path::Cold)).unwrap();
        }
        let odd = queues
            .pop(|_| 3, |first, job| first.admission.seq % 2 == job.admission.seq % 2)
            .await
            .unwrap();
        assert_eq!(odd.iter().map(|job| job.admission.seq).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(pop(&queues, 8).await.unwrap(), [2, 4, 6, 7, 8]);
    }
}
