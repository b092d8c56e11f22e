use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::inflight::Admission;
use crate::event::Event;
use crate::listen::Path;
use crate::store::{BadRow, Claimed};

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

impl Job {
    /// A row that is ours. If it cannot be decoded, the error and who has delivered it are given back.
    pub(crate) fn cold(admission: Admission, row: Claimed, queued_at: Instant) -> Result<Self, (BadRow, Vec<String>)> {
        match row.event {
            Ok(event) => Ok(Self {
                admission,
                event,
                attempts: row.attempts,
                done_by: row.done_by,
                path: Path::Cold,
                lag: row.lag,
                queued_at,
            }),
            Err(bad) => Err((bad, row.done_by)),
        }
    }
}

/// What a worker takes at once.
#[derive(Debug)]
pub(crate) enum Popped {
    One(Job),
    /// For a listener that takes several.
    Batch(Vec<Job>),
}

/// What there is to pop.
enum Next {
    /// `None`: nothing, ever again.
    Is(Option<Popped>),
    Later,
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
    /// How many wait for jobs, at the most.
    workers: usize,
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
    pub(crate) fn new(hot_capacity: usize, cold_capacity: usize, workers: usize) -> Self {
        Self {
            state: Mutex::default(),
            ready: Notify::new(),
            room: Notify::new(),
            hot_capacity,
            cold_capacity,
            workers,
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

    /// Queues as many cold jobs as there is room for; gives the others back.
    pub(crate) fn push_cold(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut state = self.state();
        let room = if state.closed {
            0
        } else {
            self.cold_capacity - state.cold.len()
        };
        let mut jobs = jobs.into_iter();
        let before = state.cold.len();
        state.cold.extend(jobs.by_ref().take(room));
        let pushed = state.cold.len() - before;
        drop(state);
        for _ in 0..pushed.min(self.workers) {
            self.ready.notify_one();
        }
        jobs.collect()
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

    /// Half of what the cold queue holds.
    pub(crate) fn half(&self) -> usize {
        self.cold_capacity.div_ceil(2)
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

    /// Waits for the next job, and takes up to `max - 1` others that `same` says go with it.
    pub(crate) async fn pop(&self, max: impl Fn(&Job) -> usize, same: impl Fn(&Job, &Job) -> bool) -> Option<Popped> {
        loop {
            if let Next::Is(popped) = self.next(&max, &same) {
                return popped;
            }
            let ready = self.ready.notified();
            tokio::pin!(ready);
            // Registered before looking again, so that a job pushed in between is not missed.
            ready.as_mut().enable();
            if let Next::Is(popped) = self.next(&max, &same) {
                return popped;
            }
            ready.await;
        }
    }

    fn next(&self, max: &impl Fn(&Job) -> usize, same: &impl Fn(&Job, &Job) -> bool) -> Next {
        let mut state = self.state();
        let cold_before = state.cold.len();
        let Some(first) = state.pop() else {
            return if state.closed { Next::Is(None) } else { Next::Later };
        };
        let max = max(&first);
        let popped = if max > 1 {
            let mut jobs = vec![first];
            state.take_alike(&mut jobs, max, same);
            Popped::Batch(jobs)
        } else {
            Popped::One(first)
        };
        let cold = state.cold.len();
        drop(state);
        if cold_before * 2 > self.cold_capacity && cold * 2 <= self.cold_capacity {
            self.room.notify_waiters();
        }
        Next::Is(Some(popped))
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

    fn seqs(popped: &Popped) -> Vec<i64> {
        let jobs = match popped {
            Popped::One(job) => std::slice::from_ref(job),
            Popped::Batch(jobs) => jobs,
        };
        jobs.iter().map(|job| job.admission.seq).collect()
    }

    async fn pop(queues: &Queues, max: usize) -> Option<Vec<i64>> {
        let popped = queues.pop(|_| max, |_, _| true).await?;
        Some(seqs(&popped))
    }

    #[tokio::test]
    async fn hot_and_cold_are_drained_two_to_one() {
        let queues = Queues::new(10, 10, 4);
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
        let queues = Queues::new(1, 1, 4);
        queues.push(job(1, Path::Hot)).unwrap();
        assert_eq!(queues.push(job(2, Path::Hot)).unwrap_err().admission.seq, 2);
        queues.push(job(3, Path::Cold)).unwrap();
        assert_eq!(queues.cold_room(), 0);
    }

    #[tokio::test]
    async fn as_many_are_taken_as_there_is_room_for() {
        let queues = Queues::new(1, 2, 4);
        let left = queues.push_cold((1..=3).map(|seq| job(seq, Path::Cold)).collect());
        assert_eq!(left.iter().map(|job| job.admission.seq).collect::<Vec<_>>(), [3]);
        assert_eq!(pop(&queues, 1).await, Some(vec![1]));
        queues.close();
        assert_eq!(queues.push_cold(left).len(), 1);
        assert_eq!(pop(&queues, 1).await, Some(vec![2]));
        assert_eq!(pop(&queues, 1).await, None);
    }

    /// Every worker that waits is woken for a batch of jobs, and none is left behind when there are fewer.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_job_is_left_while_workers_wait() {
        let queues = std::sync::Arc::new(Queues::new(10_000, 10_000, 4));
        let (popped, mut all) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..4 {
            let (queues, popped) = (std::sync::Arc::clone(&queues), popped.clone());
            tokio::spawn(async move {
                while let Some(Popped::One(job)) = queues.pop(|_| 1, |_, _| false).await {
                    popped.send(job.admission.seq).unwrap();
                }
            });
        }
        for round in 0..2_000_i64 {
            let jobs = round % 7;
            for seq in 0..jobs {
                if round % 2 == 0 {
                    queues.push(job(seq, Path::Hot)).unwrap();
                }
            }
            if round % 2 == 1 {
                queues.push_cold((0..jobs).map(|seq| job(seq, Path::Cold)).collect());
            }
            for _ in 0..jobs {
                tokio::time::timeout(Duration::from_secs(10), all.recv())
                    .await
                    .expect("a job was left")
                    .unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_closed_queue_is_drained_and_then_ends() {
        let queues = Queues::new(10, 10, 4);
        queues.push(job(1, Path::Hot)).unwrap();
        queues.close();
        assert!(queues.push(job(2, Path::Hot)).is_err());
        assert_eq!(pop(&queues, 1).await, Some(vec![1]));
        assert_eq!(pop(&queues, 1).await, None);
    }

    #[tokio::test]
    async fn alike_jobs_go_together_and_the_others_keep_their_order() {
        let queues = Queues::new(10, 10, 4);
        for seq in 1..=8 {
            queues.push(job(seq, Path::Cold)).unwrap();
        }
        let odd = queues
            .pop(|_| 3, |first, job| first.admission.seq % 2 == job.admission.seq % 2)
            .await
            .unwrap();
        assert_eq!(seqs(&odd), [1, 3, 5]);
        assert_eq!(pop(&queues, 8).await.unwrap(), [2, 4, 6, 7, 8]);
    }
}
