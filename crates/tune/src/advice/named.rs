//! Names of settings in programs and libraries. Each function has the source of the name and of its meaning.

use crate::units;
use serde::{Deserialize, Serialize};
use weir_lab::stream::Place;

/// A setting of a program or library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub program: String,
    /// What to write: an option, a variable, a call.
    pub setting: String,
    /// What it means, if the setting does not say it.
    pub note: String,
}

fn named(program: &str, setting: impl Into<String>, note: impl Into<String>) -> Named {
    Named { program: program.into(), setting: setting.into(), note: note.into() }
}

/// Messages of this size, so many outstanding.
pub fn outstanding(size: u64, outstanding: u32, most: u32) -> Vec<Named> {
    vec![
        // `ib_write_bw --help`: -s, --size; -t, --tx-depth "Size of tx queue (default 128)": perftest keeps it full.
        named(
            "perftest",
            format!("ib_write_bw -s {size} -t {outstanding}"),
            "-t is the number of outstanding messages",
        ),
        // ibv_create_qp(3): cap.max_send_wr, outstanding work requests of the send queue.
        named(
            "verbs",
            format!("ibv_qp_init_attr.cap.max_send_wr = {}", 2 * most.max(1)),
            format!("for up to {most} outstanding messages and those that are complete but not polled yet"),
        ),
        // `ucx_info -cf`: "Length of send queue in the QP", UCX_RC_TX_QUEUE_LEN, 256.
        depth("UCX", "UCX_RC_TX_QUEUE_LEN", 256, most),
        // fi_verbs(7): "Default maximum tx context size (default: 384)".
        depth("libfabric, verbs", "FI_VERBS_TX_SIZE", 384, most),
        // fi_rxm(7): "Defines FI_EP_MSG TX size that would be requested (default: 128)".
        depth("libfabric, ofi_rxm", "FI_OFI_RXM_MSG_TX_SIZE", 128, most),
    ]
}

/// The depth of a queue for `most` work requests: its default if this is enough, else the next power of two.
fn depth(program: &str, variable: &str, default: u32, most: u32) -> Named {
    match most <= default {
        true => named(program, format!("{variable}={default}"), format!("its default is enough for {most} messages")),
        false => {
            named(program, format!("{variable}={}", most.next_power_of_two()), format!("its default is {default}"))
        }
    }
}

/// Messages of a connection's buffer: NCCL_STEPS in NCCL's src/include/device.h.
pub const NCCL_STEPS: u8 = 8;
/// Bytes of each with the default of NCCL_BUFFSIZE, 4194304.
pub const NCCL_CHUNK: u64 = 4_194_304 / NCCL_STEPS as u64;
/// The default of NCCL_P2P_NET_CHUNKSIZE.
pub const NCCL_SEND_CHUNK: u64 = 131_072;
/// Larger buffers are not advised: each connection and channel has one.
pub const NCCL_MOST: u64 = 64 << 20;

/// NCCL: messages of this size, also those of ncclSend.
///
/// NCCL's documentation: NCCL_BUFFSIZE, bytes of the buffer between two GPUs; NCCL_P2P_NET_CHUNKSIZE, bytes of messages
/// of ncclSend and ncclRecv.
pub fn nccl(size: u64, send: bool) -> Vec<Named> {
    let (buffer, size_text) = (u64::from(NCCL_STEPS) * size, units::size(size));
    let note = format!("{NCCL_STEPS} messages of {size_text} for each connection; the default is 4194304");
    let mut all = vec![named("NCCL", format!("NCCL_BUFFSIZE={buffer}"), note)];
    if send {
        let note = format!("messages of ncclSend; the default is {NCCL_SEND_CHUNK}");
        all.push(named("NCCL", format!("NCCL_P2P_NET_CHUNKSIZE={size}"), note));
    }
    all
}

/// Messages of at least this size.
pub fn size(size: u64) -> Vec<Named> {
    vec![
        named("perftest", format!("ib_write_bw -s {size}"), "the default is 65536"),
        // `ucx_info -cf`: "Comma-separated list of memory types and associated fragment sizes", host:512K,cuda:4M.
        named(
            "UCX",
            format!("UCX_RNDV_FRAG_SIZE=host:{}K", size.div_ceil(1024)),
            "for a rendezvous that goes through bounce buffers; the default is host:512K",
        ),
    ]
}

/// One in `period` work requests signalled.
pub fn signal(period: u32) -> Vec<Named> {
    let verbs = match period {
        0 | 1 => named("verbs", "ibv_qp_init_attr.sq_sig_all = 1", "every work request is signalled"),
        // ibv_create_qp(3), ibv_post_send(3).
        n => named(
            "verbs",
            format!("sq_sig_all = 0, IBV_SEND_SIGNALED on one in {n} work requests"),
            format!("max_send_wr must leave room for {n} work requests more than are outstanding"),
        ),
    };
    let period = period.max(1);
    let cq_mod = match period {
        1 => "--cq-mod; the default is 100, and 1 for messages above 8 KiB",
        _ => {
            "--cq-mod; the default is 100, and 1 for messages above 8 KiB, with which perftest warns of any other value"
        }
    };
    vec![
        verbs,
        // `ib_write_bw --help`: "Generate Cqe only after <--cq-mod> completion".
        // Its src/perftest_parameters.c: the default is 1 for messages above 8 KiB, for which it warns of any other.
        named("perftest", format!("ib_write_bw -Q {period}"), cq_mod),
        // `ucx_info -cf`: "Maximum number of send WQEs which can be posted without requesting a completion", 64.
        named("UCX", format!("UCX_RC_TX_CQ_MODERATION={period}"), "the default is 64"),
    ]
}

/// Buffers at multiples of `bytes`.
pub fn aligned(bytes: u32) -> Vec<Named> {
    vec![
        // posix_memalign(3).
        named(
            "C",
            format!("posix_memalign(&buffer, {bytes}, size)"),
            "and offsets of messages in it that are multiples, too",
        ),
        named("C++", format!("::operator new(size, std::align_val_t{{{bytes}}})"), ""),
        named("Rust", format!("Layout::from_size_align(size, {bytes})"), "std::alloc"),
    ]
}

/// Polling for completions.
pub fn poll() -> Vec<Named> {
    vec![
        named("verbs", "ibv_poll_cq in a loop", "without ibv_get_cq_event"),
        // `ib_send_bw --help`: "-e, --events Sleep on CQ events (default poll)"; ib_write_bw has no such option.
        named("perftest", "ib_write_bw, or ib_send_bw without -e", "they poll by default"),
        // ucp.h.
        named("UCX", "ucp_worker_progress in a loop", "without ucp_worker_wait"),
        // fi_cq(3).
        named("libfabric", "fi_cq_read in a loop", "and fi_cq_attr.wait_obj = FI_WAIT_NONE"),
    ]
}

/// Sleeping for completions.
pub fn sleep() -> Vec<Named> {
    vec![
        named("verbs", "ibv_req_notify_cq, ibv_get_cq_event", "poll once more before sleeping"),
        // As above.
        named("perftest", "ib_send_bw -e", "ib_write_bw has no such option"),
        // ucp.h.
        named("UCX", "ucp_worker_wait", "a worker with UCP_FEATURE_WAKEUP"),
        // fi_cq(3).
        named("libfabric", "fi_cq_sread", "and fi_cq_attr.wait_obj = FI_WAIT_UNSPEC"),
        // MVAPICH2's user guide: progress blocks instead of polling.
        named("MVAPICH2", "MV2_USE_BLOCKING=1", "for each process"),
    ]
}

/// A program at this place.
pub fn place(place: &Place) -> Vec<Named> {
    let mut all = vec![];
    if let Some(cpus) = &place.cpus {
        // taskset(1).
        all.push(named("any program", format!("taskset -c {cpus} PROGRAM"), ""));
        // mpirun(1) of Open MPI 4: --cpu-set; of MPICH's Hydra, `-bind-to -help`: user:0+2,1+4.
        all.push(named("Open MPI", format!("mpirun --cpu-set {cpus} --bind-to core"), "the processes of that host"));
        all.push(named(
            "MPICH",
            format!("mpiexec -bind-to user:{}", cpus.replace(',', "+")),
            "a list, one for each process",
        ));
        // MVAPICH2's user guide.
        all.push(named("MVAPICH2", format!("MV2_CPU_MAPPING={cpus}"), "with colons, one CPU for each process"));
    }
    if let Some(node) = place.node {
        // numactl(8).
        all.push(named(
            "any program",
            format!("numactl --cpunodebind={node} --membind={node} PROGRAM"),
            "CPUs and memory",
        ));
        // mpirun(1) of Open MPI.
        all.push(named("Open MPI", "mpirun --map-by numa --bind-to numa", format!("processes on node {node} only")));
        all.push(named("MPICH", "mpiexec -bind-to numa", format!("processes on node {node} only")));
    }
    all
}
