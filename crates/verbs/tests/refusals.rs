//! Runs `tests/c/refusals.c`: what the log says of each call that is refused.

mod system;

use std::process::Command;

/// The name that the program prints, the error, and what the line of the log has.
const REFUSALS: &[(&str, i32, &str)] = &[
    ("CQ of 0", libc::EINVAL, "CQ: 0 entries, completion vector 0: too few, or negative"),
    ("CQ of 1<<30", libc::EINVAL, "CQ: a size of 1073741824 entries is not from 1 to "),
    ("CQ vector", libc::EINVAL, "CQ: there is no completion vector 4711: the device has "),
    ("QP without CQ", libc::EINVAL, "QP: create: there is no send_cq or no recv_cq"),
    ("QP of 1<<30", libc::EINVAL, "QP: create: max_send_wr is 1073741824, and the limit is "),
    ("QP of a driver", libc::EOPNOTSUPP, "QP: create: qp_type 255 is not supported"),
    ("SRQ of 0", libc::EINVAL, "SRQ: create: max_wr is 0"),
    ("SRQ limit", libc::EINVAL, "SRQ: modify: srq_limit is 1000, and the SRQ holds "),
    ("SRQ in use", libc::EBUSY, "SRQ: destroy: 1 QPs use it: destroy them first"),
    ("CQ in use", libc::EBUSY, "CQ: destroy: it is in use "),
    ("PD in use", libc::EBUSY, "PD: deallocate: "),
    ("QP again", libc::EINVAL, "ibv_destroy_qp: this QP does not exist (any more)"),
    ("MR flags", libc::EINVAL, "MR: access flags 0x1000 are unknown"),
    ("MR remote without local", libc::EINVAL, "IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE"),
    (
        "MR not mapped",
        libc::EFAULT,
        "MR: 1 bytes at 0x1000 are not registered: part of it is not mapped, or not writable",
    ),
    ("MR iova", libc::EINVAL, "have different offsets in their pages"),
    ("device memory in use", libc::EBUSY, "device memory: free: 1 regions are registered on it: ibv_dereg_mr first"),
    ("QP to a group", libc::EINVAL, "modify: the destination GID is a multicast group"),
    ("QP twice to RTR", libc::EINVAL, "modify: "),
    ("MR with windows", libc::EBUSY, "memory windows are bound to it: ibv_dealloc_mw first"),
    ("AH of port 2", libc::EINVAL, "address handle: there is no port 2: the device has port 1"),
    ("QP of a group", libc::EBUSY, "destroy: it is attached to a multicast group: ibv_detach_mcast first"),
];

#[test]
fn a_call_that_is_refused_has_a_line_with_the_device_and_what_to_do() {
    let program = system::compile("refusals.c", "refusals", &["-libverbs"]);
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).arg("weir_lo").env("LD_LIBRARY_PATH", system::linked());
    let output = command.env("WEIR_INTERFACE", "lo").env("WEIR_LOG", "warn").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, log) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}{log}", output.status);
    let (calls, lines): (Vec<&str>, Vec<&str>) = (out.lines().collect(), log.lines().collect());
    let wanted: Vec<String> = REFUSALS.iter().map(|(name, errno, _)| format!("{name}: {errno}")).collect();
    assert_eq!(calls, wanted, "{log}");
    assert_eq!(lines.len(), REFUSALS.len(), "a line for each call:\n{log}");
    for (line, (name, _, why)) in lines.iter().zip(REFUSALS) {
        // An object that does not exist any more has no device.
        let is_named = line.contains("weir_lo") || why.contains("any more");
        assert!(is_named && line.contains(why), "{name}: {line}");
    }
}
