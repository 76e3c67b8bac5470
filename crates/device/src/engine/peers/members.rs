//! The QPs that are bound to a peer, and which of them still exchange proofs with it. A hello costs a look at these, and
//! not at all QPs: a process may have thousands that are connected and idle.

/// Indices of QPs, each once. An index is also in one of `asking`, `fresh` and `settled` while the peer may lack the
/// QP's proof.
#[derive(Debug, Default)]
pub struct Members {
    all: Vec<u16>,
    /// Their peer may not have proven itself. It has probably just connected, or will soon, and asks then.
    asking: Vec<u16>,
    /// The peer has proven itself, and no answer had this process's proof since.
    fresh: Vec<u16>,
    /// An answer had this process's proof, but the peer has not shown that it came. The oldest first.
    settled: Vec<u16>,
    /// Where the next answer's proofs begin in `asking`, and above them in `settled`.
    next_asking: usize,
    next_settled: usize,
    /// Answers since the last one with fresh proofs, and how many of `settled` were looked at for them.
    repetitions: u32,
    repeated: usize,
}

/// A peer that has asked so often and got no fresh proof may lack an older one: an answer with it was lost.
const LACKS_OLDER: u32 = 4;

impl Members {
    /// All of them.
    pub fn all(&self) -> &[u16] {
        &self.all
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The QPs that may need a proof of the peer.
    pub fn asking(&self) -> &[u16] {
        &self.asking
    }

    /// The QPs that have the proof of the peer, which may lack theirs, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn unconfirmed(&self) -> impl Iterator<Item = u16> {
        self.fresh.iter().chain(&self.settled).copied()
    }

    /// Adds a QP. For control calls: it allocates, so that no later call does.
    pub fn add(&mut self, index: u16) {
        self.all.push(index);
        for list in [&mut self.asking, &mut self.fresh, &mut self.settled] {
            list.reserve(self.all.len().saturating_sub(list.len()));
        }
    }

    /// Removes a QP.
    pub fn remove(&mut self, index: u16) {
        if let Some(at) = self.all.iter().rposition(|member| *member == index) {
            self.all.swap_remove(at);
        }
        self.drop_from_lists(index);
    }

    /// A QP asks for the peer's proof.
    pub fn ask(&mut self, index: u16) {
        self.drop_from_lists(index);
        self.asking.push(index);
    }

    /// The peer has proven that it owns the other end of a QP.
    pub fn proven(&mut self, index: u16) {
        self.drop_from_lists(index);
        self.fresh.push(index);
    }

    /// A QP's peer is a foreign adapter: it needs no proof, and has none.
    pub fn stays_foreign(&mut self, index: u16) {
        self.drop_from_lists(index);
    }

    /// Returns whether a QP needs a proof of the peer; those that `needs` refuses are not looked at again.
    pub fn any_asking(&mut self, needs: impl Fn(u16) -> bool) -> bool {
        any(&mut self.asking, needs)
    }

    /// Returns whether the peer may lack the proof of a QP that has the peer's; those that `lacks` refuses are not
    /// looked at again. QPs that ask stay in their list: a QP may need the peer's proof although the peer has the
    /// QP's.
    pub fn any_unconfirmed(&mut self, lacks: impl Fn(u16) -> bool) -> bool {
        [&mut self.fresh, &mut self.settled].into_iter().any(|list| any(list, &lacks))
    }

    /// Chooses up to `most` QPs for an answer. `prove` makes the proof of a QP, and returns `false` for a QP that needs
    /// none any more. All `most` are used only if the peer may lack the proofs of others: then it asks at
    /// once for more.
    pub fn choose(&mut self, most: usize, mut prove: impl FnMut(u16) -> bool) {
        let (mut count, before) = (0, self.settled.len());
        while count < most
            && let Some(index) = self.fresh.pop()
        {
            if prove(index) {
                self.settled.push(index);
                count += 1;
            }
        }
        let any_fresh = count > 0;
        // An answer may have been lost: there is room for some of those too.
        let kept = if before == 0 { 0 } else { most / 4 };
        let mut looked = 0;
        while count + kept < most && looked < self.asking.len() {
            let at = (self.next_asking + looked) % self.asking.len();
            count += usize::from(prove(self.asking[at]));
            looked += 1;
        }
        self.next_asking = (self.next_asking + looked) % self.asking.len().max(1);
        (self.repetitions, self.repeated) = if any_fresh { (0, 0) } else { (self.repetitions + 1, self.repeated) };
        // The peer walks through all of them once, if it asks on and on.
        let walks = self.repetitions > LACKS_OLDER && self.repeated < before;
        let most = if looked < self.asking.len() || walks { most } else { most - 1 };
        if any_fresh {
            // This answer has room for older ones.
            self.next_settled = before;
        }
        // The latest come first.
        let mut left = before;
        while left > 0 && count < most && !self.settled.is_empty() {
            let at = match self.next_settled.min(self.settled.len()) {
                0 => self.settled.len(),
                at => at,
            } - 1;
            self.next_settled = at;
            if prove(self.settled[at]) {
                count += 1;
            } else {
                self.settled.remove(at);
            }
            left -= 1;
        }
        if any_fresh {
            // If this answer is lost, the next has the same proofs.
            self.next_settled = 0;
        } else {
            self.repeated += before - left;
        }
    }

    fn drop_from_lists(&mut self, index: u16) {
        for list in [&mut self.asking, &mut self.fresh, &mut self.settled] {
            if let Some(at) = list.iter().rposition(|member| *member == index) {
                list.remove(at);
                return;
            }
        }
    }
}

/// Returns whether one of a list fits; drops those behind it that do not.
fn any(list: &mut Vec<u16>, fits: impl Fn(u16) -> bool) -> bool {
    while let Some(index) = list.last() {
        if fits(*index) {
            return true;
        }
        list.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4;

    fn chosen(members: &mut Members) -> Vec<u16> {
        let mut chosen = Vec::new();
        members.choose(MOST, |index| {
            chosen.push(index);
            true
        });
        chosen
    }

    fn of(count: u16) -> Members {
        let mut members = Members::default();
        (0..count).for_each(|index| members.add(index));
        members
    }

    #[test]
    fn qps_that_ask_come_first_and_take_turns() {
        let mut members = of(6);
        (0..6).for_each(|index| members.ask(index));
        assert_eq!(chosen(&mut members), [0, 1, 2, 3]);
        assert_eq!(chosen(&mut members), [4, 5, 0, 1]);
        members.ask(3);
        members.remove(0);
        assert_eq!(members.asking(), [1, 2, 4, 5, 3]);
    }

    #[test]
    fn after_a_lost_answer_its_proofs_come_first_and_then_all_others() {
        let mut members = of(20);
        for block in 0..5 {
            (block * 4..block * 4 + 4).for_each(|index| members.proven(index));
            assert_eq!(chosen(&mut members), [3, 2, 1, 0].map(|n| block * 4 + n));
        }
        assert_eq!([(); 2].map(|()| chosen(&mut members)), [vec![16, 17, 18], vec![19, 12, 13]]);
        assert_eq!([(); 2].map(|()| chosen(&mut members)), [vec![14, 15, 8], vec![9, 10, 11]]);
        // The peer asks on and on: full answers lead it through the others, once.
        assert_eq!([(); 2].map(|()| chosen(&mut members)), [vec![4, 5, 6, 7], vec![0, 1, 2, 3]]);
        assert_eq!([(); 6].map(|()| chosen(&mut members).len()), [MOST - 1; 6]);
        members.proven(3);
        assert_eq!([(); 2].map(|()| chosen(&mut members)[0]), [3, 3], "the latest");
    }

    #[test]
    fn proofs_that_an_answer_had_leave_room_in_the_next() {
        let mut members = of(9);
        (0..9).for_each(|index| members.ask(index));
        (0..9).for_each(|index| members.proven(index));
        // The last answer is not full: the peer need not ask at once.
        assert_eq!([(); 3].map(|()| chosen(&mut members)), [vec![8, 7, 6, 5], vec![4, 3, 2, 1], vec![0, 1, 2]]);
        assert_eq!([(); 2].map(|()| chosen(&mut members)), [vec![0, 1, 2], vec![3, 4, 5]]);
        members.proven(7);
        assert_eq!([(); 2].map(|()| chosen(&mut members)), [vec![7, 0, 1], vec![7, 0, 1]]);
        members.ask(5);
        assert_eq!(chosen(&mut members), [5, 1, 2]);
    }

    #[test]
    fn qps_that_need_no_proof_are_not_looked_at_again() {
        let mut members = of(5);
        (0..5).for_each(|index| members.ask(index));
        (1..5).for_each(|index| members.proven(index));
        assert!(members.any_asking(|index| index == 0) && !members.any_asking(|_| false));
        assert_eq!(chosen(&mut members), [4, 3, 2, 1]);
        let mut looked = 0;
        members.choose(MOST, |index| {
            looked += 1;
            index == 2
        });
        assert_eq!(looked, 4);
        assert_eq!(chosen(&mut members), [2]);
        assert!(members.any_unconfirmed(|index| index == 2) && !members.any_unconfirmed(|_| false));
        assert_eq!((chosen(&mut members), members.all().len()), (vec![], 5));
        // A QP that needs a proof stays where it is, even if the peer needs none of it.
        members.ask(3);
        assert!(!members.any_unconfirmed(|_| false));
        assert_eq!(members.asking(), [3]);
        members.stays_foreign(3);
        assert!(members.asking().is_empty() && members.all().contains(&3));
    }
}
