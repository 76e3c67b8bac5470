//! The packet traces that the thesis prints (T fig 4.2 to 4.4, 5.3, 5.6, 6.2), typed in, are diagnosed rightly.

mod common;

use common::{analyzed, finding, kinds};
use std::collections::HashSet;

fn set(kinds: &[&'static str]) -> HashSet<&'static str> {
    kinds.iter().copied().collect()
}

#[test]
fn one_read_with_a_page_fault_at_the_responder() {
    let document = analyzed(
        "0.000000 > read 5
         0.000141 < rnr 5 14
         0.000538 < response 5
         0.004565 > read 5
         0.004639 < response 5",
    );
    assert_eq!(kinds(&document), set(&["responder-page-fault"]));
    let fault = finding(&document, "responder-page-fault");
    assert_eq!((fault.count, fault.cost_ns, fault.cost_packets), (1, 4_424_000, 1));
    assert_eq!(fault.frames, [1, 2, 4]);
}

#[test]
fn one_read_with_a_page_fault_at_the_requester() {
    let document = analyzed(
        "0.000000 > read 5
         0.000005 < response 5
         0.000527 > read 5
         0.000620 < response 5",
    );
    assert_eq!(kinds(&document), set(&["requester-page-fault"]));
    let fault = finding(&document, "requester-page-fault");
    assert_eq!((fault.count, fault.cost_ns, fault.cost_packets), (1, 522_000, 1));
}

#[test]
fn a_send_and_a_write_with_a_page_fault_at_the_responder() {
    for (operation, [nak, again, ack]) in
        [("send", ["0.000513", "0.003905", "0.003906"]), ("write", ["0.000526", "0.006035", "0.006041"])]
    {
        let document = analyzed(&format!(
            "0.000000 > {operation} 9
             {nak} < rnr 9 14
             {again} > {operation} 9
             {ack} < ack 9"
        ));
        assert_eq!(kinds(&document), set(&["responder-page-fault"]), "{operation}");
        assert_eq!(finding(&document, "responder-page-fault").count, 1);
    }
}

#[test]
fn nothing_is_found_in_a_send_and_a_write_without_a_fault() {
    for operation in ["send", "write"] {
        let document = analyzed(&format!("0.000000 > {operation} 9\n0.000003 < ack 9"));
        assert_eq!(kinds(&document), set(&[]), "{operation}");
    }
}

#[test]
fn damming_of_a_second_read_by_a_fault_at_the_responder() {
    let document = analyzed(
        "0.000000 > read 5
         0.000140 < rnr 5 14
         0.000451 < response 5
         0.003968 > read 5
         0.003970 > read 6
         0.004051 < response 5
         0.541748 > read 6
         0.541755 < response 6",
    );
    assert_eq!(kinds(&document), set(&["damming", "responder-page-fault"]));
    let dammed = finding(&document, "damming");
    assert_eq!((dammed.count, dammed.cost_ns, dammed.cost_packets), (1, 537_697_000, 1));
    assert_eq!(dammed.frames, [5, 7]);
    assert!(dammed.confidence >= 0.65, "{}", dammed.confidence);
    assert!(dammed.text.contains("READ with PSN 6 waited 538 ms"), "{}", dammed.text);
    assert_eq!((dammed.requester.qp, dammed.responder.qp), (Some(common::REQUESTER), Some(common::RESPONDER)));
    assert_eq!(dammed.ladder.len(), 8);
    let settings: Vec<&str> = dammed.advice.iter().map(|advice| advice.setting).collect();
    for setting in ["min_rnr_timer", "UCX_RC_RNR_TIMEOUT", "UCX_IB_REG_METHODS", "FI_VERBS_USE_ODP"] {
        assert!(settings.contains(&setting), "{setting} in {settings:?}");
    }
}

#[test]
fn damming_of_a_second_read_by_a_fault_at_the_requester() {
    let document = analyzed(
        "0.000000 > read 5
         0.000005 < response 5
         0.000778 > read 5
         0.000782 > read 6
         0.000861 < response 5
         0.435909 > read 6
         0.435912 < response 6",
    );
    assert_eq!(kinds(&document), set(&["damming", "requester-page-fault"]));
    assert_eq!(finding(&document, "damming").cost_ns, 435_048_000);
}

#[test]
fn damming_that_a_third_read_reveals() {
    let document = analyzed(
        "0.000000 > read 5
         0.000140 < rnr 5 14
         0.000451 < response 5
         0.003968 > read 5
         0.003970 > read 6
         0.004051 < response 5
         0.006000 > read 7
         0.006003 < nak 6
         0.006010 > read 6
         0.006012 > read 7
         0.006016 < response 6
         0.006018 < response 7",
    );
    assert_eq!(kinds(&document), set(&["damming", "responder-page-fault"]));
    let dammed = finding(&document, "damming");
    assert!(dammed.cost_ns < 100_000 && dammed.text.contains("before a timeout"), "{}", dammed.text);
}

#[test]
fn damming_of_a_send_after_a_read_that_is_answered_twice() {
    let document = analyzed(
        "0.070816 > read 26
         0.072510 < rnr 26 13
         0.077290 > read 26
         0.077993 < response 26
         0.078019 > send 27
         0.078845 < response 26
         1.739339 > send 27
         1.739344 < ack 27",
    );
    assert_eq!(kinds(&document), set(&["damming", "responder-page-fault"]));
    let dammed = finding(&document, "damming");
    assert!(dammed.text.contains("SEND with PSN 27 waited 1.66 s"), "{}", dammed.text);
}

#[test]
fn a_packet_that_the_network_loses_is_not_damming() {
    let document = analyzed(
        "0.000000 > read 5
         0.000005 < response 5
         0.000100 > read 6
         0.540000 > read 6
         0.540005 < response 6",
    );
    assert_eq!(kinds(&document), set(&["timeout", "loss"]));
    assert_eq!(finding(&document, "timeout").cost_ns, 539_900_000);
}

#[test]
fn a_flow_that_survives_replays_and_loses_elsewhere_is_not_dammed() {
    // Ten replays that requests survive, losses elsewhere, and one loss during a replay.
    let mut capture = String::new();
    let mut psn = 0;
    let mut at = 0.0;
    for round in 0..10 {
        let again = psn + 1;
        for (delay, packet) in [
            (0.0, format!("> read {psn}")),
            (0.000_141, format!("< rnr {psn} 14")),
            (0.004_500, format!("> read {psn}")),
            (0.004_502, format!("> read {again}")),
            (0.004_570, format!("< response {psn}")),
        ] {
            capture += &format!("{:.6} {packet}\n", at + delay);
        }
        if round == 4 {
            capture += &format!("{:.6} > read {again}\n", at + 0.5);
        }
        capture += &format!("{:.6} < response {again}\n", at + 0.500_010);
        psn += 2;
        at += 0.6;
    }
    let document = analyzed(&capture);
    assert_eq!(kinds(&document), set(&["responder-page-fault", "timeout", "loss"]));
}

#[test]
fn a_request_that_is_lost_before_the_point_of_capture_is_lost_and_not_late() {
    let document = analyzed(
        "0.000000 > send 5
         0.000002 > send 7
         0.000003 < ack 5
         0.000004 < nak 6
         0.000020 > send 6
         0.000021 > send 7
         0.000024 < ack 7",
    );
    assert_eq!(kinds(&document), set(&["loss"]));
    assert_eq!(finding(&document, "loss").count, 1);
}

#[test]
fn a_request_that_arrives_after_the_next_one_is_reordered() {
    let document = analyzed(
        "0.000000 > write 5
         0.000002 > write 7
         0.000003 > write 6
         0.000004 < ack 7",
    );
    assert_eq!(kinds(&document), set(&["reordering"]));
    assert_eq!(finding(&document, "reordering").frames, [3]);
}
