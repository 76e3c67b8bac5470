use super::*;
use crate::fake::{Adapter, run};
use crate::places::Placement;
use weir_lab::stream::Measure;
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
        let mut adapter = Adapter { polling: 1.15, ..Adapter::new(seed, 0.02) };
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
        let place = search.contests.iter().rfind(|contest| contest.stage == Stage::Place).unwrap();
        assert_eq!(place.candidates[0].job.polls.word(), "both", "seed {seed}: the best is used in later stages");
    }
}

/// A contest with these throughputs in each round.
fn contest(stage: Stage, candidates: &[(&str, &[f64])]) -> Contest {
    let found = Adapter::new(1, 0.0).measure(&Job::default()).unwrap();
    let candidate = |(name, gbits): &(&str, &[f64])| {
        let runs = gbits.iter().map(|gbits| Some(Found { gbits: *gbits, ..found.clone() })).collect();
        Candidate { runs, ..Candidate::new(*name, Job::default()) }
    };
    Contest::new(stage, 1 << 20, candidates.iter().map(candidate).collect())
}

#[test]
fn the_best_is_clearly_faster_than_the_reference_and_need_not_be_the_fastest() {
    let sleeps: &[f64] = &[10.0, 10.01, 9.99, 10.0, 10.0, 10.01];
    let wide: &[f64] = &[8.0, 30.0, 9.0, 31.0, 8.0, 30.0];
    let clear: &[f64] = &[12.0, 12.01, 12.0, 11.99, 12.0, 12.0];
    let small: &[f64] = &[10.05, 10.06, 10.04, 10.05, 10.05, 10.06];
    let best = |candidates: &[(&str, &[f64])]| contest(Stage::Wake, candidates).best();
    assert_eq!(best(&[("none", sleeps), ("both", wide), ("sender", clear)]), Some(2));
    assert_eq!(best(&[("none", sleeps), ("both", wide), ("sender", small)]), Some(0), "less than 1 %");
    assert_eq!(best(&[("none", &[]), ("both", clear), ("sender", small)]), Some(1), "the reference has no result");
}

#[test]
fn the_smallest_number_within_one_per_cent_is_not_left_out() {
    for seed in 1..=30 {
        let mut adapter = Adapter { drop: -0.006, ..Adapter::new(seed, 0.001) };
        let mut search = Search::new(Plan::quick(vec![]));
        run(&mut search, &mut adapter, 10_000);
        for (size, name) in best(&search, Stage::Outstanding) {
            assert_eq!(name, BestB::PAPER.of(size).to_string(), "seed {seed}: {size} bytes");
        }
    }
}

#[test]
fn five_rounds_are_enough_for_a_large_effect() {
    for seed in 1..=30 {
        let mut adapter = Adapter { misaligned: 0.5, ..Adapter::new(seed, 0.03) };
        let plan = Plan { most_rounds: 5, ..Plan::quick(places()) };
        let mut search = Search::new(plan);
        run(&mut search, &mut adapter, 10_000);
        for contest in search.contests.iter().filter(|contest| contest.stage == Stage::Offset) {
            let [page, line, one, half] = &contest.candidates[..] else { panic!() };
            assert!(contest.clear(one, page) && contest.clear(half, page), "seed {seed}");
            assert!(!contest.clear(line, page), "seed {seed}");
        }
        // With 8 MiB the best number gains less than a factor of two.
        for contest in search.contests.iter().filter(|c| c.stage == Stage::Outstanding && c.size <= 1 << 20) {
            let best = &contest.candidates[contest.best().unwrap()];
            assert!(contest.clear(best, &contest.candidates[0]), "seed {seed}: {}", contest.size);
        }
    }
}

#[test]
fn after_two_refusals_larger_numbers_are_not_tried() {
    let mut contest = contest(Stage::Outstanding, &[("1", &[]), ("2", &[]), ("4", &[]), ("8", &[]), ("16", &[])]);
    let limits = Limits { least_rounds: 3, most_rounds: 10, precision: 0.01 };
    let found = Adapter::new(1, 0.0).measure(&Job::default()).unwrap();
    contest.record(0, Ok(found.clone()), limits);
    contest.record(1, Err("no memory for 2 MiB".into()), limits);
    contest.record(2, Err("no memory for 4 MiB".into()), limits);
    let larger: Vec<_> = contest.candidates[3..].iter().map(|c| (c.runs.len(), c.out.clone())).collect();
    assert_eq!(larger, vec![(0, Some(Out::Failed("no memory for 4 MiB".into()))); 2]);
    assert_eq!((contest.turn(), contest.round()), (Some(0), 1));
}

#[test]
fn a_short_budget_has_a_first_round_or_a_reason() {
    // The first stage's share is not enough for its first round, all of the time is.
    let mut adapter = Adapter { overhead: 1.8, ..Adapter::new(5, 0.01) };
    let mut search = Search::new(Plan { budget: 80.0, ..Plan::quick(places()) });
    run(&mut search, &mut adapter, 10_000);
    let first = search.contests.iter().filter(|contest| contest.stage == Stage::Outstanding);
    assert!(first.flat_map(|contest| &contest.candidates).all(|candidate| !candidate.runs.is_empty()));
    assert!(search.spent <= 80.0 && search.failure().is_none());
    let mut search = Search::new(Plan { budget: 0.1, ..Plan::quick(places()) });
    run(&mut search, &mut adapter, 10_000);
    assert!(search.finished() && search.runs == 0);
    assert!(search.failure().unwrap().contains("longer --budget"));
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
