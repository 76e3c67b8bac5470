//! Compares the types of `rdma::cm_types` with `<rdma/rdma_cma.h>`: a C program prints every size, offset and constant,
//! and the values of Rust must be the same.

use std::fmt::Write;
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use weir_odp_fi::rdma::cm_types::*;
use weir_odp_fi::rdma::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
};

const HEADER: &str = "/usr/include/rdma/rdma_cma.h";

/// A C expression and its value in Rust.
type Fact = (String, i128);

/// Size, alignment and offsets of structures.
macro_rules! structures {
    ($facts:ident: $($name:ident { $($field:ident),* })*) => {$(
        let c = concat!("struct ", stringify!($name));
        $facts.push((format!("sizeof({c})"), size_of::<$name>() as i128));
        $facts.push((format!("_Alignof({c})"), align_of::<$name>() as i128));
        $($facts.push((format!("offsetof({c}, {})", stringify!($field)), offset_of!($name, $field) as i128));)*
    )*};
}

/// Offsets of members with another path in Rust, because the header has unnamed types.
macro_rules! members {
    ($facts:ident: $($name:ident: $c:literal = $($rust:ident).+;)*) => {$(
        let c = format!("offsetof(struct {}, {})", stringify!($name), $c);
        $facts.push((c, offset_of!($name, $($rust).+) as i128));
    )*};
}

macro_rules! constants {
    ($facts:ident: $($name:ident),*) => {$(
        $facts.push((stringify!($name).into(), $name as i128));
    )*};
}

#[test]
fn types_and_constants_match_the_header() {
    assert!(Path::new(HEADER).exists(), "{HEADER} does not exist: install librdmacm-dev (`make test` installs it)");
    let facts = facts();
    let c = print(&facts);
    assert_eq!(c.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(c)
        .filter(|((_, rust), c)| rust != c)
        .map(|((name, rust), c)| format!("{name} is {c} in C, {rust} in Rust"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a C program prints for each fact.
fn print(facts: &[Fact]) -> Vec<i128> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let mut c = format!("#include <stddef.h>\n#include <stdio.h>\n#include <{}>\nint main(void) {{\n", &HEADER[13..]);
    for (name, _) in facts {
        let _ = writeln!(c, "printf(\"%lld\\n\", (long long)({name}));");
    }
    fs::write(&source, c + "return 0; }\n").unwrap();
    run(Command::new("cc").arg("-w").arg("-o").arg(&program).arg(&source));
    run(&mut Command::new(&program)).lines().map(|line| line.parse().unwrap()).collect()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn facts() -> Vec<Fact> {
    let mut facts = vec![];
    structures! { facts:
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_addr {}
        rdma_route { addr, path_rec, num_paths }
        rdma_event_channel { fd }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
    }
    members! { facts:
        rdma_addr: "src_addr" = src;
        rdma_addr: "src_storage" = src;
        rdma_addr: "dst_addr" = dst;
        rdma_addr: "dst_storage" = dst;
        rdma_addr: "addr.ibaddr" = ibaddr;
        rdma_cm_event: "param.conn" = param.conn;
        rdma_cm_event: "param.ud" = param.ud;
    }
    constants! { facts:
        RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR,
        RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_CONNECT_ERROR,
        RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED,
        RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_MULTICAST_ERROR,
        RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB,
        RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC
    }
    facts
}
