//! What a user can change: settings by name and value, in the layer that the user's program is written for.

use serde::Serialize;

/// A change that helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What has the setting.
    pub layer: Layer,
    /// Its name, as it is written.
    pub setting: &'static str,
    /// The value to set.
    pub value: String,
    /// Why it helps.
    pub why: &'static str,
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

impl Layer {
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

fn advice(layer: Layer, setting: &'static str, value: &str, why: &'static str) -> Advice {
    Advice { layer, setting, value: value.to_owned(), why }
}

/// Against on-demand paging in places where its faults cost most.
pub fn no_odp() -> Vec<Advice> {
    vec![
        advice(Layer::Verbs, "ibv_reg_mr", "without IBV_ACCESS_ON_DEMAND", "pinned memory has no page faults"),
        advice(Layer::Ucx, "UCX_IB_REG_METHODS", "rcache,direct", "UCX up to 1.13 may register memory on demand"),
        advice(Layer::Ucx, "UCX_REG_NONBLOCK_MEM_TYPES", "(empty)", "newer UCX: no registration on demand"),
        advice(Layer::Libfabric, "FI_VERBS_USE_ODP", "0", "the verbs provider pins memory"),
    ]
}

/// Faults before they cost.
pub fn prefetch() -> Vec<Advice> {
    vec![advice(
        Layer::Verbs,
        "ibv_advise_mr",
        "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE",
        "brings the pages in before requests meet their absence",
    )]
}

/// The smallest RNR delay: ODP QPs wait as briefly as they can (T 7.1).
pub fn short_rnr() -> Vec<Advice> {
    vec![
        advice(
            Layer::Verbs,
            "min_rnr_timer",
            "1 (0.01 ms)",
            "of the responder's QP: requesters wait less after an RNR NAK",
        ),
        advice(Layer::Ucx, "UCX_RC_RNR_TIMEOUT", "10us", "the same, default 1 ms"),
        advice(Layer::Libfabric, "FI_VERBS_MIN_RNR_TIMER", "1", "the same, default 12"),
        advice(Layer::OpenMpi, "btl_openib_ib_min_rnr_timer", "1", "the same, default 25 (61 ms)"),
    ]
}

/// A dummy operation that shows the responder what is missing (T 7.1).
pub fn dummy() -> Advice {
    advice(
        Layer::Verbs,
        "ibv_post_send",
        "another request while one is late",
        "shows the responder the missing PSN: its sequence NAK replaces the timeout",
    )
}

/// Fewer QPs that meet one page.
pub fn fewer_qps() -> Advice {
    advice(
        Layer::Verbs,
        "QPs with requests on ODP memory",
        "at most 10",
        "each dropped response costs an event of the adapter",
    )
}

/// A shorter ACK timeout, where the adapter honours it.
pub fn timeout(exponent: u8) -> Vec<Advice> {
    let value = format!("{exponent}");
    vec![
        advice(Layer::Verbs, "timeout", &value, "4.096 us * 2^timeout; adapters have a floor"),
        advice(Layer::Ucx, "UCX_RC_TIMEOUT", &microseconds(exponent), "the same, default 1 s"),
        advice(Layer::OpenMpi, "btl_openib_ib_timeout", &value, "the same, default 20"),
        advice(Layer::Nccl, "NCCL_IB_TIMEOUT", &value, "the same, default 20"),
    ]
}

/// More time before a connection fails.
pub fn more_retries() -> Vec<Advice> {
    vec![
        advice(Layer::Verbs, "retry_cnt", "7", "the most retries"),
        advice(Layer::Ucx, "UCX_RC_RETRY_COUNT", "7", "the same"),
        advice(Layer::Nccl, "NCCL_IB_RETRY_CNT", "7", "the same"),
        advice(Layer::Nccl, "NCCL_IB_TIMEOUT", "22", "each retry waits longer, if the path is down for seconds"),
    ]
}

/// Receives that are there before their messages.
pub fn more_receives() -> Vec<Advice> {
    vec![
        advice(Layer::Verbs, "ibv_post_recv", "earlier, or max_recv_wr larger", "no message finds the queue empty"),
        advice(Layer::Ucx, "UCX_RC_RX_QUEUE_LEN", "8192", "default 4095"),
        advice(Layer::Libfabric, "FI_VERBS_RX_SIZE", "4096", "default 384"),
    ]
}

/// A timer whose code 0 is the longest delay.
pub fn rnr_timer_not_zero() -> Vec<Advice> {
    vec![
        advice(Layer::Verbs, "min_rnr_timer", "12 (0.64 ms)", "code 0 is 655.36 ms, the longest delay"),
        advice(Layer::Libfabric, "FI_VERBS_MIN_RNR_TIMER", "12", "the same"),
        advice(Layer::OpenMpi, "btl_openib_ib_min_rnr_timer", "12", "the same"),
    ]
}

/// RNR retries without end.
pub fn rnr_retry() -> Advice {
    advice(Layer::Verbs, "rnr_retry", "7", "repeats without end while the receiver is not ready")
}

/// A network that loses nothing.
pub fn lossless() -> Vec<Advice> {
    vec![
        advice(
            Layer::Network,
            "priority flow control (PFC)",
            "on the priority of RoCE",
            "switches drop no packets of it",
        ),
        advice(Layer::Network, "ECN on the switches", "on", "senders slow down before queues are full"),
    ]
}

/// Links and switches that damage packets.
pub fn cables() -> Advice {
    advice(
        Layer::Network,
        "cables, transceivers, switch firmware",
        "check symbol errors",
        "packets are changed on the way",
    )
}

/// A path that keeps the order.
pub fn one_path() -> Advice {
    advice(Layer::Network, "load balancing", "per flow, not per packet", "go-back-N treats reordering as loss")
}

/// Congestion control.
pub fn congestion() -> Vec<Advice> {
    vec![
        advice(Layer::Network, "DCQCN", "on at all hosts", "senders slow down when a CNP arrives"),
        advice(
            Layer::Network,
            "ECN thresholds",
            "check for the sharing flows",
            "marks that come too early cost throughput",
        ),
    ]
}

/// Keys and bounds.
pub fn keys() -> Advice {
    advice(
        Layer::Verbs,
        "rkey, address and length",
        "those of a registered region",
        "the responder refused the request",
    )
}

/// Requests that the responder's QP does not serve.
pub fn rights() -> Advice {
    advice(
        Layer::Verbs,
        "qp_access_flags, max_dest_rd_atomic, receive length",
        "as the requests need",
        "the responder's QP does not serve such a request",
    )
}

/// A responder that fails.
pub fn responder() -> Advice {
    advice(Layer::Verbs, "the responder", "see its completions and events", "it could not perform the request")
}

/// Peers that end.
pub fn peer() -> Advice {
    advice(Layer::Verbs, "the peer's process", "see whether and why it ended", "nothing came from it any more")
}

/// Fewer ACKs for many small messages.
pub fn coalesce() -> Vec<Advice> {
    vec![
        advice(
            Layer::Verbs,
            "ibv_post_send",
            "lists of work requests, a signalled one for 16 to 64",
            "one doorbell and one ACK for many",
        ),
        advice(Layer::Ucx, "UCX_RC_TX_CQ_MODERATION", "64", "completions for one in 64 messages"),
    ]
}

fn microseconds(exponent: u8) -> String {
    format!("{}us", (4096u64 << exponent.min(31)).div_ceil(1000))
}
