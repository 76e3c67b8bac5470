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
fn one_request_that_is_lost_during_a_replay_is_no_damming_where_others_are_lost() {
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
         1.140005 < response 7",
    );
    assert_eq!(kinds(&document), set(&["responder-page-fault", "timeout", "loss"]));
    assert_eq!(finding(&document, "timeout").count, 2);
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
