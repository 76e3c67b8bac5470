//! The contests of each stage.

use super::contest::{Candidate, Contest, Stage};
use crate::plan::Plan;
use weir_lab::stream::equations::BestB;
use weir_lab::stream::{Job, Sides, Signal};

/// The stages of a search with their shares of the time.
pub fn stages(plan: &Plan) -> Vec<(Stage, f64)> {
    let share = |sizes: &[u64], candidates: usize| (sizes.len() * candidates) as f64;
    let all = [
        (Stage::Outstanding, share(&plan.sizes, 8)),
        (Stage::Signal, share(&plan.probes, 3)),
        (Stage::Offset, share(&plan.few, 4)),
        (Stage::Wake, share(&plan.probes, 4)),
        (Stage::Place, share(&plan.few, plan.places.len())),
    ];
    all.into_iter().filter(|(_, share)| *share > 0.0).collect()
}

/// The contests of a stage; they depend on those of earlier stages.
pub fn contests(stage: Stage, plan: &Plan, before: &[Contest]) -> Vec<Contest> {
    let sizes = match stage {
        Stage::Outstanding => &plan.sizes,
        Stage::Signal | Stage::Wake => &plan.probes,
        Stage::Offset | Stage::Place => &plan.few,
    };
    let contests = sizes.iter().filter_map(|size| {
        let candidates = match stage {
            Stage::Outstanding => outstanding(plan, *size),
            _ => {
                let job = best_job(before, *size)?;
                match stage {
                    Stage::Signal => signal(&job),
                    Stage::Offset => offset(&job),
                    Stage::Wake => wake(&job),
                    Stage::Place | Stage::Outstanding => place(plan, &job),
                }
            }
        };
        (candidates.len() > 1).then(|| Contest::new(stage, *size, candidates))
    });
    contests.collect()
}

/// The best of all settings of a size so far: that of its latest contest, which has the best of those before it.
fn best_job(before: &[Contest], size: u64) -> Option<Job> {
    let best = |contest: &Contest| Some(contest.candidates[contest.best()?].job.clone());
    before.iter().rev().filter(|contest| contest.size == size).find_map(best)
}

/// Powers of two, and the number of F's equation 1. The reference is one message at a time.
fn outstanding(plan: &Plan, size: u64) -> Vec<Candidate> {
    let fits = |b: &u32| *b == 1 || (*b <= plan.most && u64::from(*b) * size <= plan.memory);
    let mut numbers: Vec<u32> = (0..32).map(|bits| 1u32 << bits).take_while(fits).collect();
    numbers.push(BestB::PAPER.of(size));
    numbers.retain(fits);
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|b| Candidate::new(b.to_string(), plan.job(size, b))).collect()
}

/// Half of the outstanding messages, every one, and equation 2, if these differ. The reference is half.
fn signal(job: &Job) -> Vec<Candidate> {
    let candidate = |signal: Signal| Candidate::new(signal.word(), Job { signal, ..job.clone() });
    let mut all = vec![candidate(Signal::Half)];
    if job.outstanding >= 4 {
        all.push(candidate(Signal::Every(1)));
    }
    let every_by_equation = weir_lab::stream::equations::signal_period(job.size, 1, u32::MAX) == 1;
    if job.outstanding >= 2 && !every_by_equation {
        all.push(candidate(Signal::Equation));
    }
    all
}

/// A multiple of cache lines, one byte, and half a line. The reference is a page.
fn offset(job: &Job) -> Vec<Candidate> {
    [0, 64, 1, 32].map(|offset| Candidate::new(offset.to_string(), Job { offset, ..job.clone() })).into()
}

/// Which sides poll. The reference is that both sleep.
fn wake(job: &Job) -> Vec<Candidate> {
    let (sender, receiver) = (Sides { sender: true, receiver: false }, Sides { sender: false, receiver: true });
    [Sides::NONE, Sides::BOTH, sender, receiver]
        .map(|polls| Candidate::new(polls.word(), Job { polls, ..job.clone() }))
        .into()
}

fn place(plan: &Plan, job: &Job) -> Vec<Candidate> {
    let placed = plan.places.iter().map(|place| {
        let (sender, receiver) = (place.sender.clone(), place.receiver.clone());
        Candidate::new(&place.name, Job { sender, receiver, ..job.clone() })
    });
    placed.collect()
}
