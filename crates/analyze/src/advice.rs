//! What a user can change: settings by name and value, in the layer that the user's program is written for.

use crate::setup::t_tr;
use serde::Serialize;

/// A setting that helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What is to be reached. The settings with the same purpose do the same in different layers.
    pub purpose: &'static str,
    /// What has the setting.
    pub layer: Layer,
    /// Its name, as it is written.
    pub setting: &'static str,
    /// The value to set.
    pub value: String,
    /// The layer's default, or another remark; empty if there is none.
    pub remark: &'static str,
}

/// The layer of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Layer {
    /// An attribute or a call of libibverbs.
    #[serde(rename = "verbs")]
    Verbs,
    #[serde(rename = "UCX")]
    Ucx,
    #[serde(rename = "libfabric")]
    Libfabric,
    #[serde(rename = "Open MPI")]
    OpenMpi,
    #[serde(rename = "NCCL")]
    Nccl,
    /// The switches and the hosts.
    #[serde(rename = "network")]
    Network,
}

impl Advice {
    /// The setting as a user writes it.
    pub fn written(&self) -> String {
        let Advice { setting, value, .. } = self;
        match self.layer {
            Layer::Verbs | Layer::Network => format!("{setting}: {value}"),
            Layer::OpenMpi => format!("--mca {setting} {value}"),
            Layer::Ucx | Layer::Libfabric | Layer::Nccl => format!("{setting}={value}"),
        }
    }
}

impl Layer {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Verbs => "verbs",
            Layer::Ucx => "UCX",
            Layer::Libfabric => "libfabric",
            Layer::OpenMpi => "Open MPI",
            Layer::Nccl => "NCCL",
            Layer::Network => "network",
        }
    }
}

/// The settings of one purpose.
fn settings(purpose: &'static str, settings: &[(Layer, &'static str, &str, &'static str)]) -> Vec<Advice> {
    let advice = |&(layer, setting, value, remark): &(Layer, &'static str, &str, &'static str)| Advice {
        purpose,
        layer,
        setting,
        value: value.to_owned(),
        remark,
    };
    settings.iter().map(advice).collect()
}

/// Against on-demand paging in places where its faults cost most.
pub fn no_odp() -> Vec<Advice> {
    settings(
        "Pin the memory, which then has no page faults",
        &[
            (Layer::Verbs, "ibv_reg_mr", "without IBV_ACCESS_ON_DEMAND", ""),
            (Layer::Ucx, "UCX_IB_REG_METHODS", "rcache,direct", "up to 1.13, which may register on demand"),
            (Layer::Ucx, "UCX_REG_NONBLOCK_MEM_TYPES", "", "newer"),
            (Layer::Libfabric, "FI_VERBS_USE_ODP", "0", ""),
        ],
    )
}

/// Faults before they cost.
pub fn prefetch() -> Vec<Advice> {
    settings(
        "Bring the pages in before requests need them",
        &[
            (Layer::Verbs, "ibv_advise_mr", "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE", ""),
            (Layer::Ucx, "UCX_IB_ODP_PREFETCH", "y", "up to 1.13"),
        ],
    )
}

/// The smallest RNR delay: requesters wait as briefly as they can (T 7.1).
pub fn short_rnr() -> Vec<Advice> {
    settings(
        "Let requesters wait less after an RNR NAK",
        &[
            (Layer::Verbs, "min_rnr_timer", "1", "0.01 ms; an attribute of the responder's QP"),
            (Layer::Ucx, "UCX_RC_RNR_TIMEOUT", "10us", "default 1 ms"),
            (Layer::Libfabric, "FI_VERBS_MIN_RNR_TIMER", "1", "default 12"),
            (Layer::OpenMpi, "btl_openib_ib_min_rnr_timer", "1", "default 25"),
        ],
    )
}

/// A dummy operation that shows the responder what is missing (T 7.1).
pub fn dummy() -> Vec<Advice> {
    settings(
        "Post another request while one is late, so that a sequence NAK replaces the timeout",
        &[(Layer::Verbs, "ibv_post_send", "a dummy request, such as a READ of one byte", "")],
    )
}

/// Fewer QPs that meet one page.
pub fn fewer_qps() -> Vec<Advice> {
    settings(
        "Let fewer QPs meet the same missing pages, because each dropped response costs an event",
        &[
            (Layer::Verbs, "QPs with requests on ODP memory", "10 at most", ""),
            (Layer::Nccl, "NCCL_IB_QPS_PER_CONNECTION", "1", ""),
        ],
    )
}

/// A shorter ACK timeout, where the adapter honours it.
pub fn timeout(exponent: u8) -> Vec<Advice> {
    let value = format!("{exponent}");
    settings(
        "Set a shorter ACK timeout (4.096 us * 2^value), as far as the adapter's floor permits",
        &[
            (Layer::Verbs, "timeout", &value, "C_ACK, an attribute of the requester's QP"),
            (Layer::Ucx, "UCX_RC_TIMEOUT", &microseconds(exponent), "default 1 s"),
            (Layer::OpenMpi, "btl_openib_ib_timeout", &value, "default 20"),
            (Layer::Nccl, "NCCL_IB_TIMEOUT", &value, "default 20"),
        ],
    )
}

/// More time before a connection fails.
pub fn more_retries() -> Vec<Advice> {
    settings(
        "If the path may be down for seconds, retry longer",
        &[
            (Layer::Verbs, "retry_cnt", "7", "the most"),
            (Layer::Ucx, "UCX_RC_RETRY_COUNT", "7", "default 7"),
            (Layer::Nccl, "NCCL_IB_RETRY_CNT", "7", "default 7"),
            (Layer::Nccl, "NCCL_IB_TIMEOUT", "22", "default 20"),
        ],
    )
}

/// Receives that are there before their messages.
pub fn more_receives() -> Vec<Advice> {
    settings(
        "Post receives before their messages come",
        &[
            (Layer::Verbs, "max_recv_wr", "as many as the peer may send", "and post them before the peer sends"),
            (Layer::Ucx, "UCX_RC_RX_QUEUE_LEN", "8192", "default 4095"),
            (Layer::Libfabric, "FI_VERBS_RX_SIZE", "4096", "default 384"),
        ],
    )
}

/// The timer of which code 0 is the longest delay.
pub fn rnr_timer_not_zero() -> Vec<Advice> {
    settings(
        "Set the RNR timer, because code 0 is 655.36 ms, the longest delay",
        &[
            (Layer::Verbs, "min_rnr_timer", "12", "0.64 ms; an attribute of the responder's QP"),
            (Layer::Libfabric, "FI_VERBS_MIN_RNR_TIMER", "12", "default 12"),
            (Layer::OpenMpi, "btl_openib_ib_min_rnr_timer", "12", "default 25"),
        ],
    )
}

/// RNR retries without end.
pub fn rnr_retry() -> Vec<Advice> {
    settings(
        "Retry without end while the receiver is not ready",
        &[
            (Layer::Verbs, "rnr_retry", "7", "an attribute of the requester's QP"),
            (Layer::Ucx, "UCX_RC_RNR_RETRY_COUNT", "7", "default 7"),
            (Layer::OpenMpi, "btl_openib_ib_rnr_retry", "7", "default 7"),
        ],
    )
}

/// A network that loses nothing.
pub fn lossless() -> Vec<Advice> {
    settings(
        "Make the network lossless for RoCE",
        &[
            (Layer::Network, "priority flow control (PFC)", "on for the priority of RoCE", ""),
            (Layer::Network, "ECN", "on, at the switches", "senders slow down before queues are full"),
            (Layer::Nccl, "NCCL_IB_TC", "the traffic class of that priority", ""),
            (Layer::Ucx, "UCX_IB_TRAFFIC_CLASS", "the same", ""),
        ],
    )
}

/// Links and switches that damage packets.
pub fn cables() -> Vec<Advice> {
    settings(
        "Find what damages packets on the way",
        &[(
            Layer::Network,
            "symbol_error, link_downed, rx_crc_errors",
            "look for growing counters",
            "cables, transceivers",
        )],
    )
}

/// A path that keeps the order.
pub fn one_path() -> Vec<Advice> {
    settings(
        "Keep the order of a QP's packets, because go-back-N treats another order as loss",
        &[(Layer::Network, "load balancing", "per flow, not per packet", "")],
    )
}

/// Congestion control.
pub fn congestion() -> Vec<Advice> {
    settings(
        "See why queues fill",
        &[
            (Layer::Network, "DCQCN", "on at all hosts", "senders slow down when a CNP arrives"),
            (Layer::Network, "ECN thresholds", "compare with the queues", "marks that come too early cost throughput"),
        ],
    )
}

/// Keys and bounds.
pub fn keys() -> Vec<Advice> {
    settings(
        "Use the key, address and length of a region that is registered with the right",
        &[(Layer::Verbs, "access", "IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC", "of the region and of the QP")],
    )
}

/// Requests that the responder's QP does not serve.
pub fn rights() -> Vec<Advice> {
    settings(
        "Let the responder's QP serve such requests",
        &[
            (Layer::Verbs, "qp_access_flags", "the rights that the requests need", ""),
            (Layer::Verbs, "max_dest_rd_atomic", "the requester's max_rd_atomic or more", ""),
            (Layer::Verbs, "ibv_post_recv", "receives as long as the messages", ""),
        ],
    )
}

/// A responder that fails.
pub fn responder() -> Vec<Advice> {
    settings(
        "See why the responder could not perform the request",
        &[(Layer::Verbs, "the responder's program", "its completions and asynchronous events", "")],
    )
}

/// Peers that end.
pub fn peer() -> Vec<Advice> {
    settings(
        "See whether the peer is there",
        &[(Layer::Verbs, "the peer's program", "whether it ended, and why; and the QP number and address", "")],
    )
}

/// Fewer ACKs for many small messages.
pub fn coalesce() -> Vec<Advice> {
    settings(
        "Let one ACK and one completion stand for many messages",
        &[
            (Layer::Verbs, "ibv_post_send", "lists of requests, one in 16 to 64 with IBV_SEND_SIGNALED", ""),
            (Layer::Ucx, "UCX_RC_TX_CQ_MODERATION", "64", "default 64"),
        ],
    )
}

fn microseconds(exponent: u8) -> String {
    format!("{}us", t_tr(exponent).div_ceil(1000))
}
