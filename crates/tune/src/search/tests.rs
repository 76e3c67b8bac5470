use super::*;
use crate::fake::{Adapter, run};
use crate::places::Placement;
use weir_lab::stream::equations::BestB;

fn places() -> Vec<Placement> {
    let named = |name: &str| Placement { name: name.into(), ..Placement::default() };
    vec![named("any"), named("apart")]
}

fn best(search: &Search, stage: Stage) -> Vec<(u64, String)> {
    let of_stage = search.contests.iter().filter(|contest| contest.stage == stage);
    of_stage.filter_map(|c| Some((c.size, c.candidates[c.best()?].name.clone()))).collect()
}

#[test]
fn the_best_settings_are_found_within_the_budget_despite_noise() {
    for seed in 1..=20 {
        let mut adapter = Adapter::new(seed, 0.02);
        let mut search = Search::new(Plan::quick(places()));
        run(&mut search, &mut adapter, 10_000);
        assert!(search.finished() && search.spent <= search.plan.budget, "seed {seed}: {}", search.spent);
        for (size, name) in best(&search, Stage::Outstanding) {
            let job = |b: u32| search.plan.job(size, b);
            let (most, got) = (adapter.gbits(&job(BestB::PAPER.of(size))), adapter.gbits(&job(name.parse().unwrap())));
            assert!(got >= 0.98 * most, "seed {seed}: {size} bytes, {name}: {got} of {most}");
        }
        assert!(best(&search, Stage::Offset).iter().all(|(_, name)| name == "0" || name == "64"), "seed {seed}");
        assert_eq!(best(&search, Stage::Wake)[1].1, "both", "seed {seed}");
    }
}

#[test]
fn elimination_keeps_the_best() {
    for seed in 1..=50 {
        let mut adapter = Adapter { drop: 0.3, ..Adapter::new(seed, 0.05) };
        let mut search = Search::new(Plan::quick(vec![]));
        run(&mut search, &mut adapter, 10_000);
        for contest in search.contests.iter().filter(|contest| contest.stage == Stage::Outstanding) {
            let b = BestB::PAPER.of(contest.size).to_string();
            let truly = contest.candidates.iter().find(|candidate| candidate.name == b).unwrap();
            assert_eq!(truly.out, None, "seed {seed}: {} bytes, {b} is out", contest.size);
            assert!(contest.candidates.iter().any(|candidate| candidate.out == Some(Out::Slower)), "seed {seed}");
        }
    }
}

#[test]
fn a_search_that_was_interrupted_continues_where_it_was() {
    let seed = 7;
    let (mut whole, mut first) = (Adapter::new(seed, 0.02), Adapter::new(seed, 0.02));
    let mut uninterrupted = Search::new(Plan::quick(places()));
    run(&mut uninterrupted, &mut whole, 10_000);
    let mut search = Search::new(Plan::quick(places()));
    for runs in [0, 1, 17, 100, 10_000] {
        run(&mut search, &mut first, runs);
        search = serde_json::from_str(&serde_json::to_string(&search).unwrap()).unwrap();
    }
    assert_eq!(first.jobs, whole.jobs, "seed {seed}: no job is repeated or left out");
    assert_eq!(search.next(), None);
    assert_eq!(search.runs as usize, first.jobs.len());
}

#[test]
fn a_size_that_cannot_be_measured_is_left_out() {
    let mut adapter = Adapter { refuses: vec![1 << 20], ..Adapter::new(3, 0.01) };
    let mut search = Search::new(Plan::quick(vec![]));
    run(&mut search, &mut adapter, 10_000);
    let contest = search.contests.iter().find(|contest| contest.size == 1 << 20).unwrap();
    assert!(contest.candidates.iter().all(|c| matches!(&c.out, Some(Out::Failed(why)) if why.contains("do not fit"))));
    assert_eq!(contest.candidates[0].runs.len(), 1);
    assert_eq!(search.failure(), None);
    let mut adapter = Adapter { refuses: search.plan.sizes.clone(), ..Adapter::new(3, 0.01) };
    let mut search = Search::new(Plan::quick(vec![]));
    run(&mut search, &mut adapter, 10_000);
    assert_eq!(search.failure(), Some("32768 bytes do not fit"));
    assert!(search.finished());
}

#[test]
fn slow_runs_do_not_exceed_the_budget() {
    let mut adapter = Adapter { overhead: 1.5, ..Adapter::new(5, 0.01) };
    let mut search = Search::new(Plan::quick(places()));
    run(&mut search, &mut adapter, 10_000);
    assert!(search.finished() && search.spent <= search.plan.budget && search.spent > 0.8 * search.plan.budget);
    assert_eq!(search.contests.iter().map(|contest| contest.stage).max(), Some(Stage::Place));
}

#[test]
fn candidates_take_turns_in_alternating_order() {
    let mut adapter = Adapter::new(5, 0.01);
    let mut search = Search::new(Plan::quick(vec![]).with_sizes(vec![64 << 20], true));
    run(&mut search, &mut adapter, 6);
    let order: Vec<u32> = adapter.jobs.iter().map(|job| job.outstanding).collect();
    assert_eq!(order, [1, 2, 4, 4, 2, 1]);
}

#[test]
fn strong_noise_costs_little_throughput() {
    let (mut loss, mut sizes) = (0.0, 0.0);
    for seed in 1..=30 {
        let mut adapter = Adapter::new(seed, 0.1);
        let mut search = Search::new(Plan::quick(places()));
        run(&mut search, &mut adapter, 10_000);
        assert!(search.spent <= search.plan.budget, "seed {seed}");
        for (size, name) in best(&search, Stage::Outstanding) {
            let gbits = |b: u32| adapter.gbits(&search.plan.job(size, b));
            loss += 1.0 - gbits(name.parse().unwrap()) / gbits(BestB::PAPER.of(size));
            sizes += 1.0;
        }
    }
    assert!(loss / sizes < 0.02, "seeds 1 to 30: {}", loss / sizes);
}
