//! A limit to the READs and atomics that all QPs of an adapter have outstanding together.
//!
//! With 128 READs over 128 QPs a ConnectX-6 shows no packet flood, and "according to the behavior of the requests"
//! has a mechanism to control outstanding requests across all QPs (T app. A, fig A.2). A request that waits for a
//! credit meets no page fault meanwhile, so the adapter tracks more of the requests that do meet one.

/// Credits for outstanding READs and atomics. A host has one `Outstanding` for all QPs, and implements
/// `Host::take_read` and `Host::give_back_reads` with it.
#[derive(Clone, Debug, Default)]
pub struct Outstanding {
    limit: Option<u32>,
    taken: u32,
}

impl Outstanding {
    /// `None`: the number of credits is unlimited.
    pub fn new(limit: Option<u32>) -> Outstanding {
        Outstanding { limit, taken: 0 }
    }

    /// Takes a credit if there is one. Otherwise the host must poll the QP again when a credit has been given back.
    pub fn take(&mut self) -> bool {
        let free = self.limit.is_none_or(|limit| self.taken < limit.max(1));
        self.taken += u32::from(free);
        free
    }

    /// Gives credits back. True: all credits were taken before, and waiting QPs may continue.
    pub fn give_back(&mut self, count: u32) -> bool {
        let full = self.limit.is_some_and(|limit| self.taken >= limit.max(1));
        self.taken = self.taken.saturating_sub(count);
        full && count > 0
    }

    /// Number of credits taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_taken_and_given_back() {
        let mut two = Outstanding::new(Some(2));
        assert_eq!([(); 4].map(|()| two.take()), [true, true, false, false]);
        assert!(two.give_back(1), "a waiting QP may continue");
        assert_eq!(two.taken(), 1);
        assert!(!two.give_back(1), "no QP waited");
        let mut all = Outstanding::new(None);
        assert!((0..1000).all(|_| all.take()));
        assert!(!all.give_back(1000));
    }

    #[test]
    fn there_is_at_least_one_credit() {
        let mut none = Outstanding::new(Some(0));
        assert!(none.take() && !none.take());
    }
}
