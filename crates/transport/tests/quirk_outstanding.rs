//! A limit to the READs and atomics that all QPs of an adapter have outstanding (T app. A).

use std::cell::RefCell;
use std::rc::Rc;
use weir_transport::testing::{Fate, Pair, Setup, read, remote, write};
use weir_transport::*;

fn setup(limit: Option<u32>) -> Setup {
    Setup { profile: Profile { outstanding_reads: limit, ..Profile::ideal() }, ..Setup::default() }
}

/// The QPs of one adapter.
fn adapter(limit: u32, qps: usize) -> (Vec<Pair>, Rc<RefCell<Outstanding>>) {
    let credits = Rc::new(RefCell::new(Outstanding::new(Some(limit))));
    let pairs = (0..qps).map(|_| {
        let mut pair = setup(Some(limit)).pair();
        pair.nodes[0].host.outstanding = credits.clone();
        pair
    });
    (pairs.collect(), credits)
}

fn requests(pair: &Pair) -> usize {
    pair.wire.count(|sent| sent.from == 0)
}

#[test]
fn all_qps_together_stay_within_the_limit() {
    let (mut pairs, credits) = adapter(6, 3);
    for pair in &mut pairs {
        (0..4).for_each(|i| pair.post(i, read(100 * i as usize), 100 * i as usize, 100));
        pair.transmit();
    }
    assert_eq!(pairs.iter().map(requests).collect::<Vec<_>>(), [4, 2, 0]);
    assert_eq!(credits.borrow().taken(), 6);
    assert_eq!(pairs[2].nodes[0].qp.requester_state(), RequesterState::WaitReads);
    assert!(pairs[2].nodes[0].qp.has_to_send());
    pairs[0].run_until_idle();
    assert_eq!(credits.borrow().taken(), 2);
    pairs[2].transmit();
    assert_eq!(requests(&pairs[2]), 4);
    pairs.iter_mut().for_each(Pair::run_until_idle);
    for pair in &pairs {
        assert_eq!(pair.outcomes(0, Queue::Send).len(), 4);
        assert_eq!(requests(pair), 4, "each once");
    }
    assert_eq!(credits.borrow().taken(), 0);
}

#[test]
fn only_reads_and_atomics_need_a_credit() {
    let (mut pairs, credits) = adapter(1, 2);
    pairs[0].post(0, read(0), 0, 100);
    pairs[0].transmit();
    let (remote_addr, rkey) = remote(200);
    pairs[1].post(0, write(0), 0, 100);
    pairs[1].post(1, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 200, 8);
    pairs[1].transmit();
    assert_eq!(requests(&pairs[1]), 1, "the WRITE only");
    pairs[0].run_until_idle();
    pairs[1].run_until_idle();
    assert_eq!(pairs[1].outcomes(0, Queue::Send).len(), 2);
    assert_eq!(credits.borrow().taken(), 0);
}

#[test]
fn a_retransmission_keeps_its_credit() {
    let (mut pairs, credits) = adapter(2, 1);
    let pair = &mut pairs[0];
    let mut losses = 3;
    pair.wire.rule = Some(Box::new(move |from, _| {
        if from == 1 && losses > 0 {
            losses -= 1;
            return Fate::Drop;
        }
        Fate::Pass
    }));
    (0..5).for_each(|i| pair.post(i, read(5000 * i as usize), 5000 * i as usize, 5000));
    let credits_seen = credits.clone();
    assert!(pair.run_until(|pair| {
        assert!(credits_seen.borrow().taken() <= 2);
        pair.outcomes(0, Queue::Send).len() == 5
    }));
    assert_eq!(credits.borrow().taken(), 0);
}

#[test]
fn credits_are_given_back_when_the_qp_ends() {
    for end in 0..4 {
        let (mut pairs, credits) = adapter(4, 1);
        let pair = &mut pairs[0];
        pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
        (0..4).for_each(|i| pair.post(i, read(0), 0, 100));
        pair.transmit();
        assert_eq!(credits.borrow().taken(), 4);
        match end {
            0 => pair.modify_from(0, QpState::Error, QpAttr::default()),
            1 => pair.modify_from(0, QpState::Reset, QpAttr::default()),
            2 => pair.run_until_idle(),
            _ => {
                let count = pair.nodes[0].qp.abandon();
                credits.borrow_mut().give_back(count);
            }
        }
        assert_eq!(credits.borrow().taken(), 0, "{end}");
    }
}

#[test]
fn without_a_limit_the_host_is_not_asked() {
    let mut pair = setup(None).pair();
    pair.nodes[0].host.outstanding = Rc::new(RefCell::new(Outstanding::new(Some(1))));
    (0..4).for_each(|i| pair.post(i, read(0), 0, 100));
    pair.transmit();
    assert_eq!(requests(&pair), 4);
    assert_eq!(pair.nodes[0].host.outstanding.borrow().taken(), 0);
}
