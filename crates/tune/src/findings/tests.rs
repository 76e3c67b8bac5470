use super::*;
use crate::fake::{Adapter, measured};
use crate::plan::Plan;
use weir_lab::stream::equations::BestB;

#[test]
fn the_best_of_each_size_and_what_matters_are_those_of_the_adapter() {
    let seed = 11;
    let findings = measured(Plan::quick(vec![]), Adapter::new(seed, 0.01));
    assert_eq!(findings.best.len(), 4);
    let top = findings.top().unwrap();
    assert!((48.0..54.0).contains(&top.gbits.mean), "seed {seed}: {top:?}");
    let verdict = |stage: Stage, setting: &str| {
        let of = findings.effects.iter().filter(|e| e.stage == stage && e.setting == setting);
        of.map(|effect| effect.verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdict(Stage::Offset, "1"), [Verdict::Slower; 2], "seed {seed}");
    assert_eq!(verdict(Stage::Wake, "both"), [Verdict::Faster; 2], "seed {seed}");
    let b = findings.effects.iter().find(|e| e.role == Role::BestOverOne).unwrap();
    assert!(b.ratio.mean > 2.0 && b.clear, "seed {seed}: {b:?}");
}

#[test]
fn settings_without_an_effect_make_no_difference() {
    let seeds = 200;
    let mut wrong = 0;
    for seed in 1..=seeds {
        let adapter = Adapter { misaligned: 1.0, polling: 1.0, every: 1.0, drop: 0.0, ..Adapter::new(seed, 0.03) };
        let findings = measured(Plan::quick(vec![]), adapter);
        let mut of = findings.effects.iter().filter(|e| e.role != Role::BestOverOne);
        wrong += u32::from(of.any(|effect| effect.clear));
    }
    // One in twenty, and a few more: a contest ends when its intervals are narrow.
    assert!(wrong * 10 < seeds as u32, "{wrong} of {seeds} searches");
}

#[test]
fn one_message_may_be_the_best_number() {
    let best = BestB { small: 1, large: 1, limit: 1 << 20, most: 1, least: 1 };
    let findings = measured(Plan::quick(vec![]), Adapter { best, drop: 0.3, ..Adapter::new(3, 0.01) });
    assert!(findings.best.iter().all(|best| best.outstanding == 1));
    let effects: Vec<&Effect> = findings.effects.iter().filter(|e| e.stage == Stage::Outstanding).collect();
    assert_eq!(effects.len(), 4);
    assert!(effects.iter().all(|e| e.role == Role::MostOverBest && e.against == "1" && e.slower()), "{effects:?}");
}

#[test]
fn equation_1_is_judged_by_what_was_measured() {
    let seed = 5;
    let findings = measured(Plan::quick(vec![]), Adapter::new(seed, 0.01));
    let equation = findings.equation1.unwrap();
    assert!(equation.paper_loss < 0.01, "seed {seed}: {equation:?}");
    assert!(equation.sizes.iter().all(|p| p.ratio.unwrap().mean > 0.98 && p.predicted_gbits.is_some()));
    let other = BestB { small: 1 << 20, large: 64 << 20, limit: 1 << 18, most: 32, least: 8 };
    let findings = measured(Plan::full(vec![]), Adapter { best: other, ..Adapter::new(seed, 0.01) });
    let equation = findings.equation1.unwrap();
    let fit = equation.fit.unwrap();
    assert!(fit.loss < 0.01 && equation.paper_loss > 0.05, "seed {seed}: {fit:?} {}", equation.paper_loss);
    assert!(fit.held_out_loss < fit.paper_held_out_loss, "seed {seed}: {fit:?}");
}

#[test]
fn equation_2_has_the_period_that_the_program_used() {
    let findings = measured(Plan::quick(vec![]), Adapter::new(2, 0.01));
    let periods: Vec<(u64, u32)> = findings.equation2.iter().map(|e| (e.size, e.period)).collect();
    let best = |size: u64| findings.best.iter().find(|best| best.size == size).unwrap().outstanding;
    assert_eq!(periods, [(32 << 10, 1), (1 << 20, best(1 << 20))]);
}

#[test]
fn failures_are_listed_with_their_reason() {
    let findings = measured(Plan::quick(vec![]), Adapter { refuses: vec![8 << 20], ..Adapter::new(2, 0.01) });
    assert_eq!(findings.best.len(), 3);
    assert!(!findings.failures.is_empty() && findings.failures.iter().all(|f| f.size == 8 << 20));
}

#[test]
fn findings_survive_json() {
    let findings = measured(Plan::quick(vec![]), Adapter::new(2, 0.01));
    let text = serde_json::to_string(&findings).unwrap();
    let back: Findings = serde_json::from_str(&text).unwrap();
    // serde_json reads a number as one of the two nearest.
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
    assert_eq!(back.best.len(), findings.best.len());
    assert!(
        back.best.iter().zip(&findings.best).all(|(a, b)| near(a.gbits.mean, b.gbits.mean) && a.period == b.period)
    );
    assert_eq!(back.effects.len(), findings.effects.len());
    for (a, b) in back.effects.iter().zip(&findings.effects) {
        assert_eq!((a.stage, a.size, &a.setting, a.verdict), (b.stage, b.size, &b.setting, b.verdict));
        assert!(near(a.ratio.mean, b.ratio.mean));
    }
    let (a, b) = (back.equation1.unwrap(), findings.equation1.unwrap());
    assert_eq!(a.fit.map(|fit| fit.constants), b.fit.map(|fit| fit.constants));
    let names = |all: &[Measured]| all.iter().flat_map(|m| &m.settings).map(|s| s.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&back.measured), names(&findings.measured));
}
