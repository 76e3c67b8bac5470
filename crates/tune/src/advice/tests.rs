use super::entry::About;
use super::*;
use crate::fake::{Adapter, measured};
use crate::places::Placement;
use crate::plan::Plan;
use crate::search::Stage;
use weir_lab::stream::Place;
use weir_lab::stream::equations::BestB;

fn about(findings: &Findings, about: About) -> Advice {
    advice(findings).into_iter().find(|advice| advice.about == about).unwrap()
}

fn settings(advice: &Advice) -> String {
    advice.settings.iter().map(|named| format!("{}: {}\n", named.program, named.setting)).collect()
}

#[test]
fn advice_has_the_values_that_were_measured() {
    let best = BestB { small: 1 << 20, large: 16 << 20, limit: 512 << 10, most: 16, least: 2 };
    let findings = measured(Plan::quick(vec![]), Adapter { best, drop: 0.2, ..Adapter::new(4, 0.01) });
    let outstanding = about(&findings, About::Outstanding);
    let top = findings.top().unwrap();
    let command = format!("perftest: ib_write_bw -s {} -t {}\n", top.size, best.of(top.size));
    assert!(settings(&outstanding).contains(&command), "{outstanding:?}");
    assert!(outstanding.text.contains("16 of 32 KiB, 8 of 128 KiB, 16 of 1 MiB, 2 of 8 MiB"), "{outstanding:?}");
    assert!(outstanding.text.contains("Too many are slower: "), "{outstanding:?}");
    // What eight messages of NCCL's default reach was not measured.
    assert!(!settings(&outstanding).contains("NCCL"), "{outstanding:?}");
}

#[test]
fn nccl_has_larger_messages_only_if_eight_of_the_default_are_slower() {
    let advice = |small: u64| {
        let best = BestB { small, large: 4 << 20, limit: 512 << 10, most: 64, least: 2 };
        let plan = Plan::quick(vec![]).with_sizes(vec![128 << 10, 512 << 10, 1 << 20, 16 << 20], true);
        settings(&about(&measured(plan, Adapter { best, drop: 0.0, ..Adapter::new(4, 0.01) }), About::Outstanding))
    };
    // Of 512 KiB, 16 are the best number.
    let text = advice(8 << 20);
    assert!(text.contains("NCCL: NCCL_BUFFSIZE=8388608\nNCCL: NCCL_P2P_NET_CHUNKSIZE=1048576\n"), "{text}");
    assert!(!advice(4 << 20).contains("NCCL"), "eight of the default's are enough");
}

/// Findings with clear effects of these ratios with each size, in the order of the sizes.
fn with_effects(stage: Stage, setting: &str, ratios: [f64; 2]) -> Findings {
    let adapter = Adapter { misaligned: 1.0, polling: 1.0, every: 1.0, ..Adapter::new(3, 0.0) };
    let any = Placement { name: "any".into(), ..Placement::default() };
    let apart = Placement { name: "apart".into(), ..Placement::default() };
    let mut findings = measured(Plan::quick(vec![any, apart]), adapter);
    let effects = findings.effects.iter_mut().filter(|effect| effect.stage == stage && effect.setting == setting);
    for (effect, mean) in effects.zip(ratios) {
        effect.ratio.mean = mean;
        effect.ratio.interval = Some([mean, mean]);
        effect.clear = mean != 1.0;
    }
    findings
}

#[test]
fn a_setting_that_is_faster_and_slower_has_its_sizes_named() {
    let stages = [
        (Stage::Wake, "both", About::Wake),
        (Stage::Place, "apart", About::Place),
        (Stage::Signal, "1", About::Signal),
        (Stage::Offset, "1", About::Alignment),
    ];
    for (stage, setting, kind) in stages {
        // With messages of 32 KiB equation 2 is to signal every one, so that both sizes have this setting.
        let advice = about(&with_effects(stage, setting, [1.05, 0.9]), kind);
        let sizes = "is faster with messages of 32 KiB (+5.0 %), and slower with 1 MiB (-10.0 %). Choose by";
        assert!(advice.text.contains(sizes) && advice.settings.is_empty(), "{advice:?}");
    }
}

#[test]
fn polling_that_is_slower_is_said_to_be() {
    let advice = about(&with_effects(Stage::Wake, "both", [1.0, 0.8]), About::Wake);
    let text = "Sleep until completions come: polling on both sides gives 20 % less throughput with messages of 1 MiB";
    assert!(advice.text.starts_with(text) && settings(&advice).contains("ibv_get_cq_event"), "{advice:?}");
}

#[test]
fn larger_messages_that_are_slower_are_not_advised() {
    let text = |gbits: [f64; 4]| {
        let mut findings = measured(Plan::quick(vec![]), Adapter::new(3, 0.01));
        for (best, mean) in findings.best.iter_mut().zip(gbits) {
            (best.gbits.mean, best.gbits.interval) = (mean, Some([0.99 * mean, 1.01 * mean]));
        }
        advice(&findings).into_iter().find(|advice| advice.about == About::Size).map(|advice| advice.text)
    };
    let reach = |gbits: [f64; 4]| text(gbits).unwrap();
    assert!(reach([50.0, 97.0, 100.0, 99.0]).starts_with("Send messages of 128 KiB or more: they reach at least 97 %"));
    let both = reach([50.0, 97.0, 100.0, 80.0]);
    assert!(both.starts_with("Send messages of 128 KiB to 1 MiB: they reach at least 97 %"), "{both}");
    assert!(both.ends_with("messages of 32 KiB reach 50 %, and messages of 8 MiB reach 80 %."), "{both}");
    assert!(reach([100.0, 50.0, 60.0, 99.0]).starts_with("Send messages of 32 KiB: "));
    assert!(
        reach([98.0, 97.0, 100.0, 96.0])
            .starts_with("Messages from 32 KiB on are large enough: they reach at least 96 %")
    );
}

#[test]
fn queues_are_made_longer_only_if_their_default_is_too_short() {
    let text = |most: u32| {
        let all = named::outstanding(1 << 20, 4, most);
        all.iter().map(|named| format!("{} ", named.setting)).collect::<String>()
    };
    assert!(text(96).contains("UCX_RC_TX_QUEUE_LEN=256 FI_VERBS_TX_SIZE=384 FI_OFI_RXM_MSG_TX_SIZE=128"));
    assert!(text(300).contains("UCX_RC_TX_QUEUE_LEN=512 FI_VERBS_TX_SIZE=384 FI_OFI_RXM_MSG_TX_SIZE=512"));
}

#[test]
fn each_clear_effect_has_its_advice() {
    let findings = measured(Plan::quick(vec![]), Adapter::new(9, 0.01));
    let alignment = about(&findings, About::Alignment);
    assert!(
        alignment.text.starts_with("Align messages on 64 bytes.") && settings(&alignment).contains("posix_memalign")
    );
    let wake = about(&findings, About::Wake);
    assert!(wake.text.contains("poll for completions on both sides") && wake.text.contains("CPU seconds"), "{wake:?}");
    let signal = about(&findings, About::Signal);
    assert!(
        signal.text.contains("every one instead of every B/2-th gives") && signal.text.contains("% less"),
        "{signal:?}"
    );
    assert!(settings(&signal).contains("sq_sig_all = 0"));
}

#[test]
fn what_makes_no_difference_has_no_settings() {
    let adapter = Adapter { misaligned: 1.0, polling: 1.0, every: 1.0, deviation: 0.0, ..Adapter::new(3, 0.0) };
    let findings = measured(Plan::quick(vec![]), adapter);
    for kind in [About::Alignment, About::Signal] {
        let advice = about(&findings, kind);
        assert!(advice.settings.is_empty() && advice.text.contains("no difference"), "{advice:?}");
    }
    // Polling is not faster, but costs CPU time.
    let wake = about(&findings, About::Wake);
    assert!(wake.text.starts_with("Sleep until completions come") && settings(&wake).contains("MV2_USE_BLOCKING=1"));
}

#[test]
fn a_faster_place_is_named_for_each_side() {
    let place = |cpu: &str| Place { cpus: Some(cpu.into()), node: None };
    let any = Placement { name: "as the kernel chooses".into(), ..Placement::default() };
    let apart = Placement { name: "apart".into(), sender: place("2"), receiver: place("3") };
    let mut findings = measured(Plan::quick(vec![any, apart]), Adapter::new(3, 0.01));
    for effect in findings.effects.iter_mut().filter(|effect| effect.stage == Stage::Place) {
        effect.clear = true;
        effect.ratio.mean = 1.2;
    }
    let text = settings(&about(&findings, About::Place));
    assert!(text.contains("any program, sender: taskset -c 2") && text.contains("any program, receiver: taskset -c 3"));
}

#[test]
fn nothing_measured_gives_no_advice() {
    let refuses = Plan::quick(vec![]).sizes;
    assert_eq!(advice(&measured(Plan::quick(vec![]), Adapter { refuses, ..Adapter::new(1, 0.0) })), []);
}
