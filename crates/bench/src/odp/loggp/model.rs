//! The extended LogGP model of "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand: Challenges and
//! Benefits": its parameters and equations, as published.

use serde::{Deserialize, Serialize};

/// The messages that are predicted and measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scenario {
    /// Rendezvous, pinned memory.
    Pinned,
    /// Scenario 1: blocking, on demand.
    #[serde(rename = "no prefetch")]
    NoPrefetch,
    /// Blocking; each side prefetches behind its control message (section V-B).
    Prefetch,
    /// Scenario 2: computation between send and completion invalidates the prefetched pages.
    Invalidated,
    /// Scenario 3: the same at the sender, and the reply has not come, so that the sender prefetches again.
    #[serde(rename = "prefetched again")]
    PrefetchedAgain,
    /// Put with active synchronisation: the origin prefetches, the target cannot.
    Put,
    /// The alternative design: both prefetch in the synchronisation.
    #[serde(rename = "put synchronised")]
    PutSynchronised,
}

/// All scenarios, in the order in which they are shown.
pub const SCENARIOS: [Scenario; 7] = [
    Scenario::Pinned,
    Scenario::NoPrefetch,
    Scenario::Prefetch,
    Scenario::Invalidated,
    Scenario::PrefetchedAgain,
    Scenario::Put,
    Scenario::PutSynchronised,
];

/// The model's parameters for messages of a size, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// o_post.
    pub post: f64,
    /// l.
    pub latency: f64,
    /// g.
    pub gap: f64,
    /// G, per byte.
    pub byte: f64,
    /// m_control, bytes.
    pub control: f64,
    /// reg, of a buffer.
    pub reg: f64,
    /// o_prefetch.
    pub prefetch: f64,
    /// o_page_fault_s.
    pub fault_sender: f64,
    /// o_page_fault_r.
    pub fault_receiver: f64,
}

impl Parameters {
    /// Equation 1: the rendezvous with pinned memory.
    pub fn pinned(&self, bytes: f64) -> f64 {
        6.0 * self.post + 2.0 * self.reg + (3.0 * self.control + bytes) * self.byte + 2.0 * self.latency + self.gap
    }

    /// Equation 2: scenario 1.
    pub fn no_prefetch(&self, bytes: f64) -> f64 {
        self.pinned(bytes) + self.fault_sender + self.fault_receiver
    }

    /// Equation 3: scenario 2.
    pub fn invalidated(&self, bytes: f64) -> f64 {
        self.no_prefetch(bytes) + self.prefetch
    }

    /// Equation 4: scenario 3.
    pub fn prefetched_again(&self, bytes: f64) -> f64 {
        self.pinned(bytes) + 2.0 * self.prefetch
    }

    /// Equation 5: Put with active synchronisation.
    pub fn put(&self, bytes: f64) -> f64 {
        self.post + bytes * self.byte + self.prefetch + self.fault_sender
    }

    /// Section VI-B, before equation 5: Put without page faults.
    pub fn put_present(&self, bytes: f64) -> f64 {
        self.post + bytes * self.byte + self.latency
    }

    /// What lies within the computation of scenario 2: of the first control message, what follows its post; the
    /// receiver's registration; and the reply, with its receive.
    pub fn within_computation(&self) -> f64 {
        3.0 * self.post + self.reg + 2.0 * self.control * self.byte + 2.0 * self.latency
    }
}

impl Scenario {
    /// The name in tables and figures.
    pub fn title(self) -> &'static str {
        match self {
            Scenario::Pinned => "pinned, (1)",
            Scenario::NoPrefetch => "scenario 1, (2)",
            Scenario::Prefetch => "prefetch, (1)",
            Scenario::Invalidated => "scenario 2, (3)",
            Scenario::PrefetchedAgain => "scenario 3, (4)",
            Scenario::Put => "Put, (5)",
            Scenario::PutSynchronised => "Put, synchronised",
        }
    }

    /// The published equation.
    pub fn equation(self) -> &'static str {
        match self {
            Scenario::Pinned => "6·o_post + 2·reg + (3·m_control + m_data)·G + 2l + g",
            Scenario::NoPrefetch => "(1) + o_page_fault_s + o_page_fault_r",
            Scenario::Prefetch => "(1): prefetches behind the control messages remove the cost of ODP",
            Scenario::Invalidated => "(2) + o_prefetch",
            Scenario::PrefetchedAgain => "(1) + 2·o_prefetch",
            Scenario::Put => "o_post + m_data·G + o_prefetch + o_page_fault_s",
            Scenario::PutSynchronised => "o_post + m_data·G + l: prefetches in the synchronisation",
        }
    }

    /// The time that the model predicts for a message of so many bytes.
    pub fn predict(self, parameters: &Parameters, bytes: u64) -> f64 {
        let bytes = bytes as f64;
        match self {
            Scenario::Pinned | Scenario::Prefetch => parameters.pinned(bytes),
            Scenario::NoPrefetch => parameters.no_prefetch(bytes),
            Scenario::Invalidated => parameters.invalidated(bytes),
            Scenario::PrefetchedAgain => parameters.prefetched_again(bytes),
            Scenario::Put => parameters.put(bytes),
            Scenario::PutSynchronised => parameters.put_present(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every parameter has a decimal digit of its own, so the digits of a sum are the factors.
    const DIGITS: Parameters = Parameters {
        post: 1.0,
        reg: 10.0,
        byte: 100.0,
        latency: 1e4,
        gap: 1e5,
        prefetch: 1e6,
        fault_sender: 1e7,
        fault_receiver: 1e8,
        control: 2.0,
    };

    #[test]
    fn the_equations_have_the_published_factors() {
        // 7 bytes of data: (3·2 + 7)·100 = 1300.
        assert_eq!(DIGITS.pinned(7.0), 121_326.0);
        assert_eq!(DIGITS.no_prefetch(7.0), 110_121_326.0);
        assert_eq!(DIGITS.invalidated(7.0), 111_121_326.0);
        assert_eq!(DIGITS.prefetched_again(7.0), 2_121_326.0);
        assert_eq!(DIGITS.put(7.0), 11_000_701.0);
        assert_eq!(DIGITS.put_present(7.0), 10_701.0);
    }

    #[test]
    fn the_computation_hides_three_posts_one_registration_and_two_messages() {
        assert_eq!(DIGITS.within_computation(), 20_413.0);
    }

    #[test]
    fn each_scenario_has_its_equation() {
        let of = |scenario: Scenario| scenario.predict(&DIGITS, 7);
        assert_eq!(of(Scenario::Pinned), DIGITS.pinned(7.0));
        assert_eq!(of(Scenario::Prefetch), DIGITS.pinned(7.0));
        assert_eq!(of(Scenario::NoPrefetch), DIGITS.no_prefetch(7.0));
        assert_eq!(of(Scenario::Invalidated), DIGITS.invalidated(7.0));
        assert_eq!(of(Scenario::PrefetchedAgain), DIGITS.prefetched_again(7.0));
        assert_eq!(of(Scenario::Put), DIGITS.put(7.0));
        assert_eq!(of(Scenario::PutSynchronised), DIGITS.put_present(7.0));
    }
}
