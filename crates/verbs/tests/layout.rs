//! Compares the types of `abi` with `<infiniband/verbs.h>`, the installed one and those of other releases: a C program
//! prints every size, offset and constant, and the values of Rust must be the same. `layout-releases.txt` has the values
//! of releases. `WEIR_RELEASES="39=/path/to/include 44=…" cargo test -p weir-verbs --test layout` records them again;
//! each directory has the release's `infiniband` and `rdma`.

mod system;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use weir_verbs::abi::*;

/// A C expression and its value in Rust.
#[derive(Clone)]
struct Fact {
    c: String,
    rust: i128,
}

/// Size and offsets of structures; `prefix` is `struct` or `union` in C.
macro_rules! structures {
    ($facts:ident, $prefix:literal: $($name:ident { $($field:ident),* })*) => {$(
        let c = concat!($prefix, " ", stringify!($name));
        $facts.push(Fact { c: format!("sizeof({c})"), rust: size_of::<$name>() as i128 });
        $facts.push(Fact { c: format!("_Alignof({c})"), rust: align_of::<$name>() as i128 });
        $(
            let field = stringify!($field).trim_start_matches("r#");
            $facts.push(Fact { c: format!("offsetof({c}, {field})"), rust: offset_of!($name, $field) as i128 });
        )*
    )*};
}

/// Offsets of members with another path in Rust, because the header has unnamed types.
macro_rules! members {
    ($facts:ident, $($name:ident: $c:literal = $($rust:ident).+;)*) => {$(
        let c = format!("offsetof(struct {}, {})", stringify!($name), $c);
        $facts.push(Fact { c, rust: offset_of!($name, $($rust).+) as i128 });
    )*};
}

macro_rules! constants {
    ($facts:ident, $($name:ident),*) => {$(
        $facts.push(Fact { c: stringify!($name).into(), rust: $name as i128 });
    )*};
}

#[test]
fn types_and_constants_match_the_header() {
    system::installed("/usr/include/infiniband/verbs.h", "libibverbs-dev");
    let facts = {
        let mut facts = facts();
        add_of_layer(&mut facts);
        facts
    };
    let c = print(&facts, None);
    assert_eq!(c.len(), facts.len());
    let wrong: String = facts.iter().zip(c).filter(|(fact, c)| !agrees(&fact.c, fact.rust, *c)).fold(
        String::new(),
        |mut wrong, (fact, c)| {
            let _ = writeln!(wrong, "{} is {c} in C, {} in Rust", fact.c, fact.rust);
            wrong
        },
    );
    assert!(wrong.is_empty(), "{wrong}");
    assert!(facts.len() > 700, "only {} facts", facts.len());
}

/// Programs that are built against any of these releases use the same structures, except for members that they do not
/// look for in this library.
#[test]
fn types_and_constants_match_every_release() {
    let facts = [facts(), later()].concat();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout-releases.txt");
    if let Ok(releases) = std::env::var("WEIR_RELEASES") {
        fs::write(&file, record(&facts, &releases)).unwrap();
    }
    let recorded = fs::read_to_string(&file).unwrap();
    let (mut releases, mut compared) = (Vec::new(), 0);
    let rust: HashMap<&str, i128> = facts.iter().map(|fact| (fact.c.as_str(), fact.rust)).collect();
    let mut seen = BTreeSet::new();
    let mut wrong = String::new();
    for line in recorded.lines() {
        if let Some(names) = line.strip_prefix("# releases: ") {
            releases = names.split(' ').collect();
        }
        let Some((c, values)) = line.split_once(" = ") else { continue };
        let Some(ours) = rust.get(c) else { panic!("{c}: not in the list of facts; record the releases again") };
        seen.insert(c);
        let values: Vec<_> = values.split(' ').collect();
        let each = releases.iter().zip(values.iter().cycle());
        for (release, theirs) in each.filter(|(_, value)| **value != "-") {
            compared += 1;
            if !agrees(c, *ours, theirs.parse().unwrap()) {
                let _ = writeln!(wrong, "{c} is {theirs} in release {release}, {ours} in Rust");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let missing: Vec<_> = facts.iter().map(|fact| &fact.c).filter(|c| !seen.contains(c.as_str())).collect();
    assert!(missing.is_empty(), "record the releases again: {missing:?}");
    assert!(releases.len() >= 5 && compared > 5000, "{releases:?}: {compared}");
}

/// Whether a value of a header fits that of Rust.
fn agrees(c: &str, ours: i128, theirs: i128) -> bool {
    match c {
        // Programs look for its members from its end, and no further than its size says.
        "sizeof(struct verbs_context)" => theirs >= ours,
        // Calls pass its size.
        "sizeof(struct ibv_port_attr)" => theirs >= ours,
        // Members that the mask does not select are not read.
        "sizeof(struct ibv_mr_init_attr)" => theirs <= ours,
        // Programs call additional members only for operations that they created the QP with.
        "sizeof(struct ibv_qp_ex)" => theirs <= ours,
        _ => ours == theirs,
    }
}

/// The table of releases, each given as `NAME=INCLUDE_DIRECTORY`.
fn record(facts: &[Fact], releases: &str) -> String {
    let releases: Vec<_> = releases.split(' ').map(|release| release.split_once('=').unwrap()).collect();
    let names: Vec<_> = releases.iter().map(|(name, _)| *name).collect();
    let mut table = format!(
        "# Sizes, offsets and constants of <infiniband/verbs.h> in releases of rdma-core on x86-64, recorded by\n\
         # layout.rs. One value: the same in all releases. \"-\": not in that release.\n# releases: {}\n",
        names.join(" ")
    );
    let columns: Vec<_> = releases.iter().map(|(_, include)| values_of(facts, Path::new(include))).collect();
    for fact in facts {
        let values: Vec<_> =
            columns.iter().map(|column| column.get(fact.c.as_str()).map_or("-".to_owned(), i128::to_string)).collect();
        let same = values.iter().all(|value| *value == values[0]);
        let _ = writeln!(table, "{} = {}", fact.c, if same { values[0].clone() } else { values.join(" ") });
    }
    table
}

/// The values of a release's headers, by expression. Expressions that do not compile are absent.
fn values_of<'a>(facts: &'a [Fact], include: &Path) -> HashMap<&'a str, i128> {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("facts.c");
    // A line of the program for each fact: the compiler names the lines that are wrong.
    fs::write(&source, c_program(facts)).unwrap();
    let head = c_program(&[]).lines().count() - 1;
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-fsyntax-only", "-fmax-errors=0"]).arg("-I").arg(include).arg(&source);
    let errors = String::from_utf8(compiler.output().unwrap().stderr).unwrap();
    let wrong: BTreeSet<usize> = errors
        .lines()
        .filter(|line| line.contains(" error: "))
        .filter_map(|line| line.strip_prefix(source.to_str()?)?.split(':').nth(1)?.parse().ok())
        .collect();
    let known = facts.iter().enumerate().filter(|(at, _)| !wrong.contains(&(head + at + 1)));
    let known: Vec<_> = known.map(|(_, fact)| Fact { c: fact.c.clone(), rust: fact.rust }).collect();
    let values = print(&known, Some(include));
    let names = facts.iter().enumerate().filter(|(at, _)| !wrong.contains(&(head + at + 1)));
    names.map(|(_, fact)| fact.c.as_str()).zip(values).collect()
}

/// What a C program prints for each fact, with headers of this directory or the installed ones.
fn print(facts: &[Fact], include: Option<&Path>) -> Vec<i128> {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    fs::write(&source, c_program(facts)).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-w").arg("-o").arg(&program).arg(&source);
    if let Some(include) = include {
        compiler.arg("-I").arg(include);
    }
    system::run(&mut compiler);
    let printed = system::run(&mut Command::new(&program));
    printed.lines().map(|line| line.parse().unwrap()).collect()
}

fn c_program(facts: &[Fact]) -> String {
    let mut c = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n\
         int main(void) {\n",
    );
    for fact in facts {
        let _ = writeln!(c, "printf(\"%lld\\n\", (long long)({}));", fact.c);
    }
    c + "return 0; }\n"
}

/// Constants of the layer alone. They are not recorded of other releases.
fn add_of_layer(facts: &mut Vec<Fact>) {
    constants! { facts,
        IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_FATAL_ERR, IBV_WC_RECV, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR,
        IBV_QP_STATE, IBV_QP_CUR_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU,
        IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_ALT_PATH,
        IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN
    }
}

fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    structures! { facts, "union": ibv_gid { raw } }
    structures! { facts, "struct":
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_ah { context, pd, handle }
        ibv_context_ops { _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_values_ex { comp_mask, raw_clock }
        verbs_context { query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, r#priv, query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow, ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3, sz, context }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        ibv_poll_cq_attr { comp_mask }
        ibv_wc_tm_info { tag, r#priv }
        ibv_moderate_cq { cq_count, cq_period }
        ibv_modify_cq_attr { attr_mask, moderate }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        ibv_cq_ex { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        _ibv_device_ops { _dummy1, _dummy2 }
        ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        ibv_query_device_ex_input { comp_mask }
        ibv_odp_caps { general_caps, per_transport_caps }
        ibv_tso_caps { max_tso, supported_qpts }
        ibv_rss_caps { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size, rx_hash_fields_mask, rx_hash_function }
        ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
        ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
        ibv_cq_moderation_caps { max_cq_count, max_cq_period }
        ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
        ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex }
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
        ibv_async_event { element, event_type }
        ib_uverbs_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved }
        ib_uverbs_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num, reserved }
        ib_uverbs_qp_attr { qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, reserved }
        ib_user_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector, rate, packet_life_time_selector, packet_life_time, preference }
        ibv_sa_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, r#type }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_mw_bind { wr_id, send_flags, bind_info }
        ibv_xrcd { context }
        ibv_xrcd_init_attr { comp_mask, fd, oflags }
        ibv_td_init_attr { comp_mask }
        ibv_td { context }
        ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
        ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags }
        ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
        ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write }
        ibv_ece { vendor_id, options, comp_mask }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_tm_cap { max_num_tags, max_ops }
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        ibv_ops_wr { wr_id, next, opcode, flags, tm }
        ibv_wq { context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond, events_completed, comp_mask }
        ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
        ibv_flow_attr { comp_mask, r#type, size, priority, num_of_specs, port, flags }
        ibv_flow_eth_filter { dst_mac, src_mac, ether_type, vlan_tag }
        ibv_flow_spec_eth { r#type, size, val, mask }
        ibv_flow_ipv4_filter { src_ip, dst_ip }
        ibv_flow_spec_ipv4 { r#type, size, val, mask }
        ibv_flow_ipv4_ext_filter { src_ip, dst_ip, proto, tos, ttl, flags }
        ibv_flow_spec_ipv4_ext { r#type, size, val, mask }
        ibv_flow_ipv6_filter { src_ip, dst_ip, flow_label, next_hdr, traffic_class, hop_limit }
        ibv_flow_spec_ipv6 { r#type, size, val, mask }
        ibv_flow_tcp_udp_filter { dst_port, src_port }
        ibv_flow_spec_tcp_udp { r#type, size, val, mask }
        ibv_flow_tunnel_filter { tunnel_id }
        ibv_flow_spec_tunnel { r#type, size, val, mask }
        ibv_flow_spec_counter_action { r#type, size, counters }
        ibv_flow { comp_mask, context, handle }
        ibv_counters_init_attr { comp_mask }
        ibv_counters { context }
        ibv_counter_attach_attr { counter_desc, index, comp_mask }
        ibv_wq_init_attr { wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags }
        ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
        ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }
        ibv_sge { addr, length, lkey }
        ibv_data_buf { addr, length }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
    }
    members! { facts,
        ibv_async_event: "element.cq" = element.cq;
        ibv_async_event: "element.port_num" = element.port_num;
        ibv_odp_caps: "per_transport_caps.rc_odp_caps" = per_transport_caps.rc_odp_caps;
        ibv_odp_caps: "per_transport_caps.uc_odp_caps" = per_transport_caps.uc_odp_caps;
        ibv_odp_caps: "per_transport_caps.ud_odp_caps" = per_transport_caps.ud_odp_caps;
        ibv_ops_wr: "tm.unexpected_cnt" = tm.unexpected_cnt;
        ibv_ops_wr: "tm.handle" = tm.handle;
        ibv_ops_wr: "tm.add.recv_wr_id" = tm.add.recv_wr_id;
        ibv_ops_wr: "tm.add.sg_list" = tm.add.sg_list;
        ibv_ops_wr: "tm.add.num_sge" = tm.add.num_sge;
        ibv_ops_wr: "tm.add.tag" = tm.add.tag;
        ibv_ops_wr: "tm.add.mask" = tm.add.mask;
        ibv_send_wr: "invalidate_rkey" = imm_data;
        ibv_send_wr: "wr.rdma.remote_addr" = wr.rdma.remote_addr;
        ibv_send_wr: "wr.rdma.rkey" = wr.rdma.rkey;
        ibv_send_wr: "wr.atomic.remote_addr" = wr.atomic.remote_addr;
        ibv_send_wr: "wr.atomic.compare_add" = wr.atomic.compare_add;
        ibv_send_wr: "wr.atomic.swap" = wr.atomic.swap;
        ibv_send_wr: "wr.atomic.rkey" = wr.atomic.rkey;
        ibv_send_wr: "wr.ud.ah" = wr.ud.ah;
        ibv_send_wr: "wr.ud.remote_qpn" = wr.ud.remote_qpn;
        ibv_send_wr: "wr.ud.remote_qkey" = wr.ud.remote_qkey;
        ibv_send_wr: "qp_type.xrc.remote_srqn" = qp_type.remote_srqn;
        ibv_send_wr: "bind_mw.mw" = extra.bind_mw.mw;
        ibv_send_wr: "bind_mw.rkey" = extra.bind_mw.rkey;
        ibv_send_wr: "bind_mw.bind_info" = extra.bind_mw.bind_info;
        ibv_send_wr: "tso.hdr" = extra.tso.hdr;
        ibv_send_wr: "tso.hdr_sz" = extra.tso.hdr_sz;
        ibv_send_wr: "tso.mss" = extra.tso.mss;
        ibv_wc: "invalidated_rkey" = imm_data;
    }
    constants! { facts,
        IBV_VALUES_MASK_RAW_CLOCK, IBV_WC_GRH, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_TM_INFO, IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_TM, IBV_TM_CAP_RC, IBV_WR_TAG_ADD, IBV_WR_TAG_DEL, IBV_WR_TAG_SYNC, IBV_OPS_SIGNALED, IBV_OPS_TM_SYNC, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_CREATE_CQ_SUP_WC_FLAGS, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CQ_ATTR_MODERATE, IBV_NODE_CA, IBV_TRANSPORT_IB, IBV_ATOMIC_HCA, IBV_PORT_DOWN, IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET, IBV_GID_TYPE_ROCE_V2, IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS, IBV_QPF_GRH_REQUIRED, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_PORT_ACTIVE_EVENT, IBV_DEVICE_SYS_IMAGE_GUID, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX, IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_GID_CHANGE, IBV_ACCESS_HUGETLB, IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_OPTIONAL_RANGE, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_FLAGS_SUPPORTED, IBV_REREG_MR_ERR_INPUT, IBV_REREG_MR_ERR_CMD, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_STATE, IBV_QP_PATH_MTU, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV, IBV_WR_TSO, IBV_WR_ATOMIC_WRITE, IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_INLINE, IBV_SEND_IP_CSUM
    }
    constants! { facts,
        IBV_FLOW_ATTR_NORMAL, IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_IPV4_EXT, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP, IBV_FLOW_SPEC_VXLAN_TUNNEL, IBV_FLOW_SPEC_ACTION_DROP, IBV_FLOW_SPEC_ACTION_COUNT, IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES, IBV_WQT_RQ, IBV_WQS_RESET, IBV_WQS_RDY, IBV_WQS_ERR, IBV_WQ_ATTR_STATE, IBV_WQ_ATTR_CURR_STATE, IBV_RX_HASH_FUNC_TOEPLITZ, IBV_QPT_RAW_PACKET, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_RX_HASH, IBV_DEVICE_UD_AV_PORT_ENFORCE, IBV_DEVICE_SRQ_RESIZE, IBV_DEVICE_XRC, IBV_QPT_XRC_SEND, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO, IBV_QP_EX_WITH_ATOMIC_WRITE
    }
    // It grows at its start, so what counts is the distance from its end.
    let size = size_of::<verbs_context>() as i128;
    for fact in facts.iter_mut().filter(|fact| fact.c.starts_with("offsetof(struct verbs_context")) {
        *fact = Fact { c: format!("sizeof(struct verbs_context) - {}", fact.c), rust: size - fact.rust };
    }
    facts
}

/// What releases after 44 added.
fn later() -> Vec<Fact> {
    let mut facts = Vec::new();
    structures! { facts, "struct":
        ibv_mr_init_attr { length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf }
    }
    members! { facts,
        ibv_qp_ex: "wr_flush" = wr_flush;
    }
    constants! { facts,
        IBV_REG_MR_MASK_IOVA, IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_BUF, IBV_QP_EX_WITH_FLUSH, IBV_WR_FLUSH, IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, IBV_FLUSH_MR, IBV_ODP_SUPPORT_FLUSH, IBV_ODP_SUPPORT_ATOMIC_WRITE, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC
    }
    facts
}
