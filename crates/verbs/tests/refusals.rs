//! Runs `tests/c/refusals.c`, `refused_extended.c` and `refused_posts.c`: what the log says of each call that is refused.

mod system;

use std::process::Command;

/// The name that the program prints, the error, and what the line of the log has.
type Refusal = (&'static str, i32, &'static str);

/// Calls of the verbs.
const REFUSALS: &[Refusal] = &[
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
    (
        "MR not mapped, to read",
        libc::EFAULT,
        "MR: 1 bytes at 0x1000 are not registered: part of it is not mapped, or not readable",
    ),
    ("MR of 0", libc::EINVAL, "are not registered: the length is 0, or goes beyond the end of memory"),
    ("MR of persistent memory", libc::EINVAL, "MR: IBV_ACCESS_FLUSH_PERSISTENT: the memory is not known to be "),
    ("implicit MR iova", libc::EINVAL, "are not registered: all of memory as a region begins at iova 0"),
    ("MR iova", libc::EINVAL, "have different offsets in their pages"),
    ("device memory in use", libc::EBUSY, "device memory: free: 1 regions are registered on it: ibv_dereg_mr first"),
    ("QP to a group", libc::EINVAL, "modify: the destination GID is a multicast group"),
    ("QP twice to RTR", libc::EINVAL, "modify: "),
    ("MR with windows", libc::EBUSY, "memory windows are bound to it: ibv_dealloc_mw first"),
    ("rule of a UD QP", libc::EOPNOTSUPP, "steering rule: only QPs of type IBV_QPT_RAW_PACKET have them"),
    (
        "devices without descriptors",
        libc::EMFILE,
        "the process has no free file descriptor, it may have 0. Raise `ulimit -n`",
    ),
    ("QP of the parent", libc::EIO, " is a forked child and uses objects of its parent: all such calls fail with EIO"),
];

/// The same of address handles and multicast groups.
const DATAGRAMS: &[Refusal] = &[
    ("AH of port 2", libc::EINVAL, "address handle: there is no port 2: the device has port 1"),
    ("AH of GID 200", libc::EINVAL, "address handle: there is no GID at this index: `weir devices` lists them"),
    ("AH of two kinds", libc::EINVAL, "address handle: source and destination GID are of different kinds"),
    ("AH without GRH", libc::EINVAL, "address handle: RoCE needs is_global and a destination GID"),
    ("QP of a group", libc::EBUSY, "destroy: it is attached to a multicast group: ibv_detach_mcast first"),
    ("one group more", libc::ENOMEM, "a device has 64 groups at most: ibv_detach_mcast"),
];

/// The same of regions, with a setting that does not permit them.
const REGIONS: &[(&str, &str, &str, &[Refusal])] = &[
    (
        "regions",
        "WEIR_PROFILE",
        "connectx3",
        &[
            (
                "ODP MR",
                libc::EOPNOTSUPP,
                "are not registered: the profile has no on-demand paging: see `weir profiles`",
            ),
            ("implicit ODP MR", libc::EOPNOTSUPP, "are not registered: the profile has no on-demand paging"),
        ],
    ),
    (
        "implicit",
        "WEIR_PROFILE",
        "connectib",
        &[("implicit ODP MR", libc::EINVAL, "are not registered: the profile has no implicit ODP regions")],
    ),
    (
        "locked",
        "WEIR_MEMLOCK",
        "strict",
        &[("MR beyond the limit", libc::ENOMEM, "are not registered: no memory, or more than `ulimit -l` with ")],
    ),
];

/// The same of steering rules.
const RULES: &[Refusal] = &[
    ("raw QP without the right", libc::EPERM, "frames of an interface need CAP_NET_RAW: run as root"),
    ("rule of port 2", libc::EINVAL, "steering rule: comp_mask is 0 and port is 1, the only port"),
    ("sniffer", libc::EOPNOTSUPP, "ALL_DEFAULT or MC_DEFAULT: there is no sniffer"),
    ("one rule more", libc::ENOMEM, "steering rule: a device has 1024 at most: destroy others first"),
    ("counters in use", libc::EBUSY, "counters: destroy: steering rules have them: ibv_destroy_flow first"),
    ("QP with a rule", libc::EBUSY, "destroy: it has steering rules: ibv_destroy_flow first"),
];

/// The same of receive work queues.
const WORK_QUEUES: &[Refusal] = &[
    ("WQ of another type", libc::EOPNOTSUPP, "WQ: create: only IBV_WQT_RQ without create_flags is supported"),
    ("WQ without CQ", libc::EINVAL, "WQ: create: there is no pd or no cq"),
    ("WQ to ERR", libc::EINVAL, "WQ: modify: the ways are RESET to RDY, RDY to ERR, and both back to RESET"),
    ("WQ flags", libc::EOPNOTSUPP, "WQ: modify: only IBV_WQ_ATTR_STATE and IBV_WQ_ATTR_CURR_STATE are supported"),
    ("WQ state", libc::EINVAL, "WQ: modify: curr_wq_state is not the state of this WQ"),
    ("receive of a WQ in RESET", libc::EINVAL, "ibv_post_wq_recv: the WQ is in state IBV_WQS_RESET, and receives need"),
    ("SGEs of a WQ", libc::EINVAL, "ibv_post_wq_recv: num_sge is 64, and max_sge of the WQ is "),
    ("WQ in use", libc::EBUSY, "WQ: destroy: indirection tables have it: ibv_destroy_rwq_ind_table first"),
    ("table of 2^31", libc::EINVAL, "indirection table: log_ind_tbl_size is 31 and comp_mask is 0: they must be 10 at"),
    ("other hash", libc::EOPNOTSUPP, "QP: create: only IBV_RX_HASH_FUNC_TOEPLITZ over "),
    ("table in use", libc::EBUSY, "indirection table: destroy: QPs have it: destroy them first"),
    ("hash of UD", libc::EINVAL, "QP: create: IBV_QP_INIT_ATTR_RX_HASH needs IBV_QPT_RAW_PACKET and a rwq_ind_tbl"),
];

/// The same of extended verbs.
const EXTENDED: &[Refusal] = &[
    ("CQ in a PD", libc::EINVAL, "CQ: create: parent_domain is not of ibv_alloc_parent_domain"),
    ("CQ unchanged", libc::EINVAL, "CQ: modify: attr_mask must be IBV_CQ_ATTR_MODERATE, and nothing else"),
    ("CQ to 0", libc::EINVAL, "CQ: resize: cqe is less than 1"),
    ("SRQ without PD", libc::EINVAL, "SRQ: create: comp_mask has no IBV_SRQ_INIT_ATTR_PD"),
    (
        "SRQ mask",
        libc::EINVAL,
        "SRQ: modify: srq_attr_mask must have no other bits than IBV_SRQ_MAX_WR and IBV_SRQ_LIMIT",
    ),
    ("SRQ number", libc::EINVAL, "SRQ: only SRQs of type IBV_SRQT_XRC have a number"),
    (
        "XRC SRQ without domain",
        libc::EINVAL,
        "SRQ: create: IBV_SRQT_XRC needs xrcd and cq, IBV_SRQT_TM tm_cap and a cq",
    ),
    ("XRC domain of nothing", libc::EINVAL, "XRC domain: it needs fd and oflags, and O_CREAT where fd is -1"),
    ("XRC domain that is missing", libc::EAGAIN, "XRC domain: the file of fd has none yet: O_CREAT makes it"),
    ("XRC domain again", libc::EINVAL, "XRC domain: the file of fd has one already: leave O_EXCL out"),
    ("QP without PD", libc::EINVAL, "QP: create: comp_mask has no IBV_QP_INIT_ATTR_PD"),
    ("table without hash", libc::EINVAL, "QP: create: IBV_QP_INIT_ATTR_IND_TABLE and IBV_QP_INIT_ATTR_RX_HASH need"),
    ("RC without its own multicast", libc::EINVAL, "QP: create: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB needs IBV_QPT_UD"),
    ("target without domain", libc::EINVAL, "QP: create: IBV_QPT_XRC_RECV needs an xrcd and IBV_QP_INIT_ATTR_XRCD"),
    ("open without type", libc::EINVAL, "QP: open: it needs qp_num, xrcd and the qp_type IBV_QPT_XRC_RECV"),
    ("XRC domain in use", libc::EBUSY, "XRC domain: close: SRQs or QPs belong to it: destroy them first"),
    ("thread domain in use", libc::EBUSY, "thread domain: deallocate: parent domains have it: ibv_dealloc_pd first"),
    (
        "parent domain mask",
        libc::EINVAL,
        "parent domain: it needs a pd of the same device, and a comp_mask of known bits",
    ),
    ("parent domain without functions", libc::EINVAL, "parent domain: alloc and free belong together"),
    ("window of type 7", libc::EINVAL, "MW: type must be IBV_MW_TYPE_1 or IBV_MW_TYPE_2"),
    (
        "device memory of 0",
        libc::EINVAL,
        "device memory: length 0, log_align_req 0, comp_mask 0: the length must be 1 to ",
    ),
    (
        "region beyond device memory",
        libc::EINVAL,
        "device memory: a region must have IBV_ACCESS_ZERO_BASED, no IBV_ACCESS_MW_BIND, and bytes",
    ),
    (
        "attach to a host",
        libc::EINVAL,
        "attach: only QPs of type IBV_QPT_UD have groups, and the GID must be that of a group",
    ),
    ("detach", libc::EINVAL, "detach: it is not attached to ff15::"),
    (
        "advice for nothing",
        libc::EINVAL,
        "ibv_advise_mr: flags must be 0 or IBV_ADVISE_MR_FLAG_FLUSH, and the list must have an SGE",
    ),
];

/// The same of work requests.
const POSTS: &[Refusal] = &[
    ("send in RESET", libc::EINVAL, "ibv_post_send: the QP is in state Reset, and sends need IBV_QPS_RTS"),
    ("receive in RESET", libc::EINVAL, "ibv_post_recv: the QP is in state Reset, and receives need IBV_QPS_INIT"),
    ("SGEs of a send", libc::EINVAL, "ibv_post_send: num_sge is 64, and max_send_sge of the QP is "),
    ("SGEs of a receive", libc::EINVAL, "ibv_post_recv: num_sge is 64, and max_recv_sge of the QP is "),
    (
        "opcode",
        libc::EINVAL,
        "ibv_post_send: opcode 4711 is not possible on a QP of type Rc, which has SENDs, RDMA WRITEs and READs, atomics and local operations, and not those of the receiving side of XRC",
    ),
    ("inline", libc::EINVAL, "ibv_post_send: opcode 2 with 4096 bytes and IBV_SEND_INLINE: max_inline_data is "),
    ("atomic of 7 bytes", libc::EINVAL, "ibv_post_send: opcode 6 with 7 bytes: atomics must have 8 bytes"),
    ("WRITE of UD", libc::EINVAL, "ibv_post_send: opcode 0 is not possible on a QP of type Ud, which has IBV_WR_SEND"),
    ("datagram to nowhere", libc::EINVAL, "ibv_post_send: wr.ud.ah is NULL"),
    ("receive beside an SRQ", libc::ENOMEM, "ibv_post_recv: it has no receive queue: ibv_post_srq_recv of its SRQ"),
];

/// The same of SRQs and windows.
const SHARED: &[Refusal] = &[
    ("SGEs of an SRQ", libc::EINVAL, "ibv_post_srq_recv: num_sge is 64, and max_sge of the SRQ is "),
    ("SRQ of 2^30 tags", libc::EINVAL, "is 1073741824, and must be from 1 to "),
    ("tag of a plain SRQ", libc::EINVAL, "ibv_post_srq_ops: only SRQs of type IBV_SRQT_TM have tags"),
    ("SGEs of a tag", libc::EINVAL, "ibv_post_srq_ops: num_sge is 64, and max_sge of tags is "),
    ("tag that cannot be", libc::EINVAL, "ibv_post_srq_ops: IBV_WR_TAG_DEL: no tag can have the handle 65535"),
    ("opcode of a tag", libc::EINVAL, "ibv_post_srq_ops: opcode 4711 is none of IBV_WR_TAG_ADD, "),
    ("bind in RESET", libc::EINVAL, "ibv_bind_mw: the QP is in state Reset, and sends need IBV_QPS_RTS"),
    (
        "bind of UD",
        libc::EINVAL,
        "ibv_bind_mw: a bind needs an RC, UC or XRC_SEND QP, a region, and in a work request a window of type 2",
    ),
];

/// The same of `ibv_wr_complete`.
const BATCHES: &[Refusal] = &[
    ("batch in RESET", libc::EINVAL, "ibv_wr_complete: the QP is in state Reset, and sends need IBV_QPS_RTS"),
    ("setter without request", libc::EINVAL, "ibv_wr_complete: ibv_wr_set_* came before the first work request"),
    ("long batch", libc::ENOMEM, "ibv_wr_complete: more work requests than max_send_wr, "),
    ("SGEs of a batch", libc::ENOMEM, "ibv_wr_complete: 64 SGEs, and max_send_sge of the QP is "),
    ("inline data of a batch", libc::ENOMEM, "ibv_wr_complete: 4096 bytes of inline data: max_inline_data is "),
    (
        "atomic of 7 bytes in a batch",
        libc::EINVAL,
        "ibv_wr_complete: the length of a request: atomics must have 8 bytes",
    ),
    (
        "window of type 1 in a batch",
        libc::EINVAL,
        "ibv_wr_complete: a bind needs an RC, UC or XRC_SEND QP, a region, and in a work request",
    ),
    ("flush to no place", libc::EINVAL, "ibv_wr_complete: ibv_wr_flush: placement or selectivity is unknown, or "),
    ("batch to nowhere", libc::EINVAL, "ibv_wr_complete: ibv_wr_set_ud_addr: the address handle is NULL"),
    ("batch without address", libc::EINVAL, "ibv_wr_complete: a request without ibv_wr_set_ud_addr"),
    ("batch without SRQ", libc::EINVAL, "ibv_wr_complete: a request without ibv_wr_set_xrc_srqn"),
];

/// Values of variables that no device opens with, and what the line of the log has.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("WEIR_PROFILE", "connectx99", "WEIR_PROFILE=connectx99: "),
    ("WEIR_ICRC", "never", "WEIR_ICRC=never: must be one of auto, always"),
    ("WEIR_FRAMING", "tcp", "WEIR_FRAMING=tcp: must be one of auto, roce, weir"),
    ("WEIR_LOCAL", "on", "WEIR_LOCAL=on: must be one of auto, off"),
    ("WEIR_FAULTS", "loss=2", "WEIR_FAULTS=loss=2: "),
    ("WEIR_ALLOW", "10.0.0.0/33", "WEIR_ALLOW=10.0.0.0/33: "),
    ("WEIR_LINKS", "lo,,lo", "WEIR_LINKS=lo,,lo: "),
    ("WEIR_CAPTURE", "/nowhere/file.pcapng", "WEIR_CAPTURE: /nowhere/file.pcapng: No such file"),
    ("WEIR_CAPTURE_SNAP", "128", "WEIR_CAPTURE_SNAP=128: there is no capture; set WEIR_CAPTURE to a file, or unset"),
    ("WEIR_CAPTURE_RING", "much", "WEIR_CAPTURE_RING=much: "),
    ("WEIR_MEMLOCK", "none", "WEIR_MEMLOCK=none: must be one of lax, strict"),
    ("WEIR_USERFAULTFD", "on", "WEIR_USERFAULTFD=on: must be one of auto, off"),
    ("WEIR_WITHOUT", "sleep", "WEIR_WITHOUT=sleep: "),
    ("WEIR_PATIENCE", "-1", "WEIR_PATIENCE=-1: must be a number of seconds"),
];

/// Runs the program; returns whether it succeeds, what it prints, and the lines of the log.
fn run(arguments: &[&str], env: &[(&str, &str)]) -> (bool, Vec<String>, Vec<String>) {
    run_program("refusals", arguments, env)
}

/// The same of another program.
fn run_program(name: &str, arguments: &[&str], env: &[(&str, &str)]) -> (bool, Vec<String>, Vec<String>) {
    let program = system::compile(&format!("{name}.c"), name, &["-libverbs"]);
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).arg("weir_lo").args(arguments).env("LD_LIBRARY_PATH", system::linked());
    command.env("WEIR_INTERFACE", "lo").env("WEIR_LOG", "warn").envs(env.iter().copied());
    let output = command.output().unwrap();
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    (output.status.success(), lines(&output.stdout), lines(&output.stderr))
}

fn each_has_a_line(program: &str, arguments: &[&str], refusals: &[Refusal]) {
    each_with(&[], program, arguments, refusals);
}

/// The same with variables of the environment.
fn each_with(env: &[(&str, &str)], program: &str, arguments: &[&str], refusals: &[Refusal]) {
    let (success, calls, lines) = run_program(program, arguments, env);
    let log = lines.join("\n");
    let wanted: Vec<String> = refusals.iter().map(|(name, errno, _)| format!("{name}: {errno}")).collect();
    assert_eq!(calls, wanted, "{log}");
    assert!(success, "{log}");
    assert_eq!(lines.len(), refusals.len(), "a line for each call:\n{log}");
    for (line, (name, _, why)) in lines.iter().zip(refusals) {
        // An object that does not exist any more has no device, and a list of devices is of none.
        let is_named = line.contains("weir_lo") || why.contains("any more") || why.contains("descriptor");
        assert!(is_named && line.contains(why), "{name}: {line}");
    }
}

#[test]
fn a_call_that_is_refused_has_a_line_with_the_device_and_what_to_do() {
    each_has_a_line("refusals", &[], REFUSALS);
    each_has_a_line("refusals", &["datagrams"], DATAGRAMS);
}

#[test]
fn a_region_that_profile_or_limit_do_not_permit_has_a_line() {
    for (what, name, value, refusals) in REGIONS {
        each_with(&[(name, value)], "refusals", &[what], refusals);
    }
}

#[test]
#[ignore = "needs root"]
fn a_steering_rule_that_is_refused_has_a_line_with_the_device_and_what_to_do() {
    each_has_a_line("refusals", &["rules"], RULES);
}

#[test]
#[ignore = "needs root"]
fn a_work_queue_that_is_refused_has_a_line_with_the_device_and_what_to_do() {
    each_has_a_line("refusals", &["queues"], WORK_QUEUES);
}

#[test]
#[ignore = "needs root"]
fn a_device_that_cannot_be_opened_any_more_has_a_line() {
    let program = system::compile("refusals.c", "refusals", &["-libverbs"]);
    let words = "ip link set lo up && exec timeout 60 \"$0\" weir_lo \"$1\"";
    for (what, errno, why) in [
        ("gone", libc::ENODEV, "no device weir_lo: its interface is gone or has no address. `weir devices` shows"),
        ("threads", libc::EAGAIN, "weir_lo: no thread can be started: raise the limit (`ulimit -u`)"),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", words]).arg(&program).arg(what).env("LD_LIBRARY_PATH", system::linked());
        let output = command.env("WEIR_INTERFACE", "lo").env("WEIR_LOG", "warn").output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{what}: {errno}\n"), "{log}");
        assert!(log.contains(why), "{log}");
    }
}

#[test]
fn a_call_of_the_extended_verbs_that_is_refused_has_a_line() {
    each_has_a_line("refused_extended", &[], EXTENDED);
}

#[test]
fn a_work_request_that_is_refused_has_a_line_with_the_qp_and_what_to_do() {
    each_has_a_line("refused_posts", &[], POSTS);
    each_has_a_line("refused_posts", &["shared"], SHARED);
    each_has_a_line("refused_posts", &["batches"], BATCHES);
}

#[test]
fn a_wrong_setting_has_a_line_with_its_name_and_what_to_do() {
    for (name, value, why) in SETTINGS {
        let (success, _, lines) = run(&[], &[(name, value)]);
        assert!(!success && lines.len() == 1, "{name}={value}: {lines:?}");
        assert!(lines[0].contains(why), "{why}: {lines:?}");
    }
}

#[test]
fn a_datagram_that_is_dropped_has_a_line_with_device_qp_and_what_to_do() {
    let (success, out, lines) = run(&["dropped"], &[]);
    assert!(success && out.len() == 1 && lines.len() == 3, "{out:?} {lines:?}");
    let start = format!("weir_lo, QP {0}: a datagram of QP {0} at 127.0.0.1 is dropped because ", out[0]);
    for (line, why) in lines.iter().zip([
        "its Q_Key is 0x2222, and that of this QP is 0x1111: send with the Q_Key",
        "no receive is posted: post receives before",
        "it does not fit into its receive of 64 bytes: post receives of 40 bytes for the GRH",
    ]) {
        assert!(line.contains(&start) && line.contains(why), "{why}: {line}");
    }
}

#[test]
fn a_qp_that_ends_has_a_line_at_each_side() {
    let (success, out, lines) = run(&["ends"], &[]);
    let wanted = ["no receive: 13", "receive with another lkey: 11", "datagram with another lkey: 4"];
    assert!(success && out == wanted, "RNR_RETRY_EXC_ERR, REM_OP_ERR and LOC_PROT_ERR: {out:?} {lines:?}");
    assert_eq!(lines.len(), 4, "{lines:#?}");
    for part in [
        "the peer had no receive posted. Post receives before",
        "the peer failed on its own side. Its memory may be unmapped",
        "ended as RemoteOperation: lkey 0x00001268 was used for 64 bytes",
        " is in the send queue error state: its send ended as LocalProtection: lkey 0x00001267",
    ] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:#?}");
    }
}

#[test]
fn a_qp_that_ends_because_of_injected_faults_says_so() {
    let (success, out, lines) = run(&["faults"], &[("WEIR_FAULTS", "loss=1,seed=7")]);
    assert!(success && out == ["send: 12"], "IBV_WC_RETRY_EXC_ERR: {out:?} {lines:?}");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["weir_lo, QP 0x", "RetryExceeded", "on purpose: WEIR_FAULTS is loss=1,seed=7", "the option --faults"] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
}

#[test]
fn an_interface_that_does_not_exist_has_a_line_with_those_that_do() {
    let (success, _, lines) = run(&[], &[("WEIR_INTERFACE", "nothing0")]);
    assert!(!success && lines.len() == 1, "{lines:?}");
    for part in ["no device here: WEIR_INTERFACE or WEIR_LINKS names no interface", "There are: ", "lo", "weir devices"]
    {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
}
