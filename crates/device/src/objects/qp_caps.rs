//! The capabilities that a QP gets.

use crate::Errno;
use crate::adapter::Adapter;
use crate::limits::{LIMITS, MAX_INLINE};
use crate::os::refused::refused_trial;
use weir_transport::QpCaps;

/// The granted capabilities: at least the requested ones. EINVAL beyond the limits.
pub fn granted(adapter: &Adapter, wanted: &QpCaps) -> Result<QpCaps, Errno> {
    let limits = [
        ("max_send_wr", wanted.max_send_wr, LIMITS.max_qp_wr),
        ("max_recv_wr", wanted.max_recv_wr, LIMITS.max_qp_wr),
        ("max_send_sge", wanted.max_send_sge, LIMITS.max_sge),
        ("max_recv_sge", wanted.max_recv_sge, LIMITS.max_sge),
    ];
    if let Some((name, wanted, limit)) = limits.into_iter().find(|(_, wanted, limit)| wanted > limit) {
        return Err(
            adapter.refuse(libc::EINVAL, format_args!("QP: create: {name} is {wanted}, and the limit is {limit}"))
        );
    }
    let inline = wanted.max_inline_data;
    if inline > MAX_INLINE {
        return Err(refused_trial(format_args!(
            "{}: QP: create: max_inline_data is {inline}, and the limit is {MAX_INLINE}",
            adapter.device.name
        )));
    }
    Ok(QpCaps {
        max_send_wr: wanted.max_send_wr,
        max_recv_wr: wanted.max_recv_wr,
        max_send_sge: wanted.max_send_sge.max(1),
        max_recv_sge: wanted.max_recv_sge.max(1),
        max_inline_data: wanted.max_inline_data,
    })
}
