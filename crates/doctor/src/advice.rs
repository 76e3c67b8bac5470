//! What to change: attributes of verbs, and settings of the libraries that set them, by name and value.
//!
//! The names are those of UCX 1.13 (`ucx_info -cf`; `UCX_REG_NONBLOCK_MEM_TYPES` of later releases), of libfabric's
//! `fi_verbs(7)`, of Open MPI 4.1's btl openib (`ompi_info --param btl openib --level 9`) and of NCCL.

use crate::finding::{Advice, Kind};
use crate::trace::Qp;

/// What helps against a kind of stall of a QP.
pub fn of(kind: Kind, qp: &Qp) -> Vec<Advice> {
    match kind {
        Kind::Damming => [
            no_odp(),
            shortest_rnr(),
            vec![
                prefetch(),
                advice(
                    "verbs",
                    "ibv_advise_mr(IBV_ADVISE_MR_ADVICE_PREFETCH) by the peer",
                    "brings pages of the peer in before READs read them",
                ),
                advice(
                    "verbs",
                    "post one more request while a request is open longer than usual",
                    "the peer notices the gap and asks for the lost request, without a timeout",
                ),
            ],
        ]
        .concat(),
        Kind::Flood => [
            no_odp(),
            vec![
                prefetch(),
                advice("verbs", "post requests to the same pages on fewer QPs", "up to ten QPs there was no flood"),
            ],
        ]
        .concat(),
        Kind::Timeout => timeouts(qp),
        Kind::RnrWait => [receives(), shortest_rnr()].concat(),
        Kind::PageFault => [no_odp(), vec![prefetch()]].concat(),
        Kind::OnDemand => no_odp(),
    }
}

/// How to keep a library from registering memory on demand, by the name of its file.
pub fn of_library(name: &str) -> Vec<Advice> {
    if ["libuct", "libucp", "libucm"].iter().any(|prefix| name.starts_with(prefix)) {
        return ucx();
    }
    if name.starts_with("libfabric") || name.starts_with("libverbs-fi") {
        return libfabric();
    }
    vec![advice("verbs", "register without IBV_ACCESS_ON_DEMAND", "no page faults of the adapter")]
}

fn advice(of: &'static str, setting: impl Into<String>, effect: &'static str) -> Advice {
    Advice { of, setting: setting.into(), effect }
}

fn ucx() -> Vec<Advice> {
    vec![
        advice("UCX", "UCX_IB_REG_METHODS=rcache,direct", "releases with this setting register no memory on demand"),
        advice("UCX", "UCX_REG_NONBLOCK_MEM_TYPES=", "later releases; an empty value is the default"),
    ]
}

fn libfabric() -> Vec<Advice> {
    vec![advice("libfabric", "FI_VERBS_USE_ODP=0", "the verbs provider registers no memory on demand")]
}

/// Memory without ODP.
fn no_odp() -> Vec<Advice> {
    let verbs = advice("verbs", "register without IBV_ACCESS_ON_DEMAND", "no page faults of the adapter");
    [vec![verbs], ucx(), libfabric()].concat()
}

/// Pages of the process's own. The response of a READ is written to them, so they must be writable.
fn prefetch() -> Advice {
    let setting = "ibv_advise_mr(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE)";
    advice("verbs", setting, "brings the pages of its data in before a request needs them")
}

/// The shortest RNR delay.
fn shortest_rnr() -> Vec<Advice> {
    let effect = "an RNR NAK delays the peer by 10 us; 0 means 655 ms";
    vec![
        advice("verbs", "min_rnr_timer=1 on the responder's QP", effect),
        advice("UCX", "UCX_RC_RNR_TIMEOUT=10us", effect),
        advice("libfabric", "FI_VERBS_MIN_RNR_TIMER=1", effect),
        advice("Open MPI", "--mca btl_openib_ib_min_rnr_timer 1", effect),
    ]
}

fn timeouts(qp: &Qp) -> Vec<Advice> {
    // 67 ms. Libraries use more by default: UCX 1 s, Open MPI and NCCL exponent 20, which is 4.3 s.
    let verbs = if qp.timeout > 14 { "timeout=14" } else { "timeout: no lower than it is; look for lost packets" };
    vec![
        advice("verbs", verbs, "the adapter repeats lost requests earlier, down to its own floor"),
        advice("UCX", "UCX_RC_TIMEOUT=67ms", "as above"),
        advice("Open MPI", "--mca btl_openib_ib_timeout 14", "as above"),
        advice("NCCL", "NCCL_IB_TIMEOUT=14", "as above"),
    ]
}

fn receives() -> Vec<Advice> {
    vec![
        advice("verbs", "post more receives, earlier", "the peer is ready when a SEND comes"),
        advice("UCX", "UCX_RC_RX_QUEUE_LEN=8192", "UCX posts more receives; its default is 4095"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_advice_for_verbs() {
        let kinds = [Kind::Damming, Kind::Flood, Kind::Timeout, Kind::RnrWait, Kind::PageFault, Kind::OnDemand];
        for kind in kinds {
            assert!(of(kind, &Qp::default()).iter().any(|advice| advice.of == "verbs"), "{kind:?}");
        }
    }

    #[test]
    fn a_library_gets_its_own_settings() {
        let of = |name| of_library(name)[0].of;
        assert_eq!([of("libuct_ib.so.0"), of("libfabric.so.1"), of("libmine.so")], ["UCX", "libfabric", "verbs"]);
    }
}
