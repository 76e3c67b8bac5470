//! Small sequences of packets that look like something else than they are.

mod common;

use common::{REQUESTER, RESPONDER, analyzed, finding, kinds};
use std::collections::HashSet;

fn set(kinds: &[&'static str]) -> HashSet<&'static str> {
    kinds.iter().copied().collect()
}

#[test]
fn a_row_that_is_sent_again_twice_is_not_reordered() {
    let document = analyzed(
        "0.000000 > send 5
         0.000002 > send 8
         0.000003 < ack 5
         0.000004 < nak 6
         0.000020 > send 6
         0.000021 > send 7
         0.000030 > send 6
         0.000031 > send 7
         0.000032 > send 8
         0.000040 < ack 8",
    );
    assert_eq!(kinds(&document), set(&["loss"]));
}

#[test]
fn a_packet_with_all_that_follows_it_is_sent_again_even_if_no_nak_was_seen() {
    let behind = |last: &str| {
        analyzed(&format!(
            "0.000000 > write 5
             0.000002 > write 7
             0.000020 > write 6
             0.000021 > write {last}
             0.000030 < ack 8"
        ))
    };
    assert_eq!(kinds(&behind("7")), set(&[]));
    assert_eq!(kinds(&behind("8")), set(&["reordering"]), "what follows is new");
}

#[test]
fn a_packet_that_the_first_one_overtook_is_reordered() {
    let document = analyzed(
        "0.000000 > write 6
         0.000001 < nak 5
         0.000003 > write 5
         0.000020 > write 5
         0.000021 > write 6
         0.000022 < ack 6",
    );
    assert_eq!(finding(&document, "reordering").frames, [3]);
}

#[test]
fn a_late_packet_behind_its_own_repetition_is_told_from_a_second_go_back() {
    let document = analyzed(
        "0.000000 > write 5
         0.000001 > write 7
         0.000002 < nak 6
         0.000003 > write 8
         0.000010 > write 6
         0.000011 > write 7
         0.000012 > write 9
         0.000013 < nak 8
         0.000014 > write 6
         0.000020 > write 8
         0.000021 > write 9
         0.000022 < ack 9",
    );
    assert_eq!(finding(&document, "reordering").frames, [9]);
}

#[test]
fn a_second_response_shows_that_the_responder_had_the_read_before_its_repetition() {
    let mut capture = String::new();
    for round in 0..2 {
        let psn = 4 + 3 * round;
        for (at, packet) in [
            (0.000_000, format!("> send {psn}")),
            (0.000_001, format!("> read {}", psn + 1)),
            (0.000_010, format!("< nak {psn}")),
            (0.000_012, format!("> send {psn}")),
            (0.000_013, format!("> read {}", psn + 1)),
            (0.000_030, format!("> send {}", psn + 2)),
            (0.000_032, format!("< ack {psn}")),
            (0.000_034, format!("< response {}", psn + 1)),
            (0.000_120, format!("< response {}", psn + 1)),
            (0.500_000, format!("> send {}", psn + 2)),
            (0.500_005, format!("< ack {}", psn + 2)),
        ] {
            capture += &format!("{:.6} {packet}\n", f64::from(round) + at);
        }
    }
    let document = analyzed(&capture);
    assert_eq!(kinds(&document), set(&["damming", "loss"]));
    let dammed = finding(&document, "damming");
    assert_eq!((dammed.count, dammed.requester.qp, dammed.responder.qp), (2, Some(REQUESTER), Some(RESPONDER)));
}

#[test]
fn one_request_that_is_lost_during_a_replay_is_no_damming_where_many_are_lost() {
    let document = analyzed(
        "0.000000 > read 5
         0.000140 < rnr 5 14
         0.000451 < response 5
         0.003968 > read 5
         0.003970 > read 6
         0.004051 < response 5
         0.541748 > read 6
         0.541755 < response 6
         0.600000 > read 7
         1.140000 > read 7
         1.140005 < response 7
         1.200000 > read 8
         1.740000 > read 8
         1.740005 < response 8
         1.800000 > read 9
         2.340000 > read 9
         2.340005 < response 9",
    );
    assert_eq!(kinds(&document), set(&["responder-page-fault", "timeout", "loss"]));
    assert_eq!(finding(&document, "timeout").count, 4);
}

#[test]
fn a_long_response_is_dropped_at_its_first_packet() {
    let document = analyzed(
        "0.000000 > read 5 512
         0.000001 > read 7 512
         0.000010 < first 5 256
         0.000400 < last 6 256
         0.000586 > read 5 512
         0.000587 > read 7 512
         0.000596 < first 5 256
         0.000980 < last 6 256
         0.000990 < first 7 256
         0.000999 < last 8 256",
    );
    assert_eq!(kinds(&document), set(&["requester-page-fault"]));
}

#[test]
fn a_requester_that_asks_for_the_rest_of_a_response_has_lost_a_part_of_it() {
    let document = analyzed(
        "0.000000 > read 5 512
         0.000002 < first 5 256
         0.000003 < last 6 256
         0.000010 > read 6 256
         0.000014 < response 6
         0.000020 > write 7
         0.000021 > write 8
         0.000022 < ack 8
         0.000024 > write 7
         0.000025 < ack 8",
    );
    assert_eq!(kinds(&document), set(&["loss"]), "although another packet comes twice");
}

#[test]
fn a_read_that_comes_again_after_its_whole_response_was_lost_in_part_unless_other_packets_come_twice() {
    let with = |others: &str| {
        analyzed(&format!(
            "0.000000 > read 5 512
             0.000002 < first 5 256
             0.000003 < last 6 256
             0.000010 > read 5 512
             0.000014 < first 5 256
             0.000015 < last 6 256
             {others}
             0.000050 > write 9
             0.000051 < ack 9"
        ))
    };
    assert_eq!(kinds(&with("")), set(&["loss"]));
    let twice = "0.000020 > write 7
                 0.000021 > write 8
                 0.000022 < ack 8
                 0.000024 > write 7
                 0.000025 < ack 8";
    assert_eq!(kinds(&with(twice)), set(&[]));
}

#[test]
fn a_responder_that_sees_a_new_request_during_a_replay_loses_none() {
    let nak = |time: &str| {
        analyzed(&format!(
            "0.000000 > read 5
             0.000140 < rnr 5 14
             0.003968 > read 5
             0.003970 > read 6
             0.003980 > read 7
             {time}
             0.004060 > read 6
             0.004061 > read 7
             0.004070 < response 6
             0.004071 < response 7"
        ))
    };
    let before = "0.003990 < nak 6
                  0.004051 < response 5";
    assert_eq!(kinds(&nak(before)), set(&["responder-page-fault", "loss"]));
    let after = "0.004051 < response 5
                 0.004053 < nak 6";
    assert_eq!(kinds(&nak(after)), set(&["responder-page-fault", "damming"]));
}

#[test]
fn two_requests_of_one_replay_that_bring_no_nak_are_dammed_although_others_are_lost() {
    let document = analyzed(
        "0.000000 > read 5
         0.000140 < rnr 5 14
         0.003968 > read 5
         0.003970 > read 6
         0.003971 > read 7
         0.004051 < response 5
         0.541748 > read 6
         0.541749 > read 7
         0.541755 < response 6
         0.541756 < response 7
         0.600000 > read 8
         1.140000 > read 8
         1.140005 < response 8
         1.200000 > read 9
         1.740000 > read 9
         1.740005 < response 9
         1.800000 > read 10
         2.340000 > read 10
         2.340005 < response 10
         2.400000 > read 11
         2.940000 > read 11
         2.940005 < response 11",
    );
    assert_eq!(kinds(&document), set(&["responder-page-fault", "damming", "timeout", "loss"]));
}

#[test]
fn a_requester_obeys_a_nak_although_a_second_one_came_meanwhile() {
    let document = analyzed(
        "0.000000 > read 5
         0.000001 < response 5
         0.000002 > read 7
         0.000003 < nak 6
         0.000004 > read 6
         0.000005 < response 6
         0.000010 > read 8
         0.000011 < nak 7
         0.000013 > read 6
         0.000014 > read 7
         0.000015 > read 8
         0.000016 > read 9
         0.000017 < response 6
         0.000018 < response 7
         0.000020 > read 7
         0.000021 > read 8
         0.000022 > read 9
         0.000030 < response 7
         0.000031 < response 8
         0.000032 < response 9",
    );
    assert_eq!(kinds(&document), set(&["reordering"]));
}

#[test]
fn what_goes_again_after_a_timeout_does_not_explain_a_late_packet() {
    let document = analyzed(
        "0.000000 > write 4
         0.000001 < ack 4
         0.000002 > write 5
         0.000003 > write 7
         0.000010 > write 6
         0.500000 > write 7
         0.500010 < ack 7",
    );
    assert_eq!(finding(&document, "reordering").frames, [5]);
}

#[test]
fn a_nak_that_was_obeyed_does_not_explain_what_comes_late_afterwards() {
    let document = analyzed(
        "0.000000 > write 5
         0.000001 > write 7
         0.000002 < nak 6
         0.000010 > write 6
         0.000011 > write 7
         0.000012 > write 6
         0.000013 > write 8
         0.000020 > write 10
         0.000030 > write 9
         0.000031 > write 11
         0.000040 < ack 11",
    );
    assert!(finding(&document, "reordering").frames.contains(&9));
}

/// The path MTU is not known, so that READ 5 might have the PSNs 5 and 6.
#[test]
fn a_read_in_place_of_the_rest_of_a_response_shows_that_the_read_before_it_is_shorter() {
    let asked = analyzed(
        "0.000000 > read 5 300
         0.000001 > read 7 300
         0.000002 < response 5 300
         0.000003 < nak 6
         0.000005 > read 6 300
         0.000006 < response 6 300
         0.000030 > read 6 300
         0.000031 > read 7 300
         0.000032 < response 6 300
         0.000033 < response 7 300",
    );
    assert_eq!(kinds(&asked), set(&["reordering"]));
    let unasked = analyzed(
        "0.000000 > read 5 300
         0.000001 > read 7 300
         0.000010 > read 6 300
         0.000011 > read 8 300
         0.000012 < response 5 300
         0.000013 < response 6 300
         0.000014 < response 7 300
         0.000015 < response 8 300",
    );
    assert_eq!(kinds(&unasked), set(&["reordering"]));
}
