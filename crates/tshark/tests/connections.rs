//! tshark finds the same fields in the messages of connection management as Weir.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use weir_capture::{Direction, PacketInfo, Recorder, RecorderOptions};
use weir_wire::cm::{Dreq, IpHeader, Message, Path, PortSpace, Rej, Rep, Req, ServiceId};
use weir_wire::ip::{Envelope, fill_ipv4_checksum};
use weir_wire::mad::{self, CLASS_CM, Mad, MadHeader};
use weir_wire::{Bth, Deth, Headers, Opcode, Operation, Psn, ROCE_PORT, Service, icrc};

/// A field's value, and how tshark prints it.
#[derive(Debug, PartialEq)]
enum Value {
    Number(u64),
    Address(IpAddr),
    Bytes(Vec<u8>),
}

type Fields = Vec<(&'static str, Value)>;

fn number(value: impl Into<u64>) -> Value {
    Value::Number(value.into())
}

/// The fields of a message in tshark's names. tshark 4.0 does not dissect MRA and SIDR, and takes
/// flow label and packet rate of a path from other bits than the 20 and 6 of IBTA 12.6.5.
fn fields(message: &Message) -> Fields {
    match message {
        Message::Req(req) => of_req(req),
        Message::Rep(rep) => of_rep(rep),
        Message::Rej(rej) => of_rej(rej),
        Message::Rtu(rtu) => vec![
            ("infiniband.cm.rtu.localcommid", number(rtu.local_comm_id)),
            ("infiniband.cm.rtu.remotecommid", number(rtu.remote_comm_id)),
            ("infiniband.cm.rtu.private", Value::Bytes(rtu.private.to_vec())),
        ],
        Message::Dreq(dreq) => of_dreq(dreq),
        Message::Drep(drep) => vec![
            ("infiniband.cm.drsp.localcommid", number(drep.local_comm_id)),
            ("infiniband.cm.drsp.remotecommid", number(drep.remote_comm_id)),
            ("infiniband.cm.drsp.private", Value::Bytes(drep.private.to_vec())),
        ],
        Message::Mra(_) | Message::SidrReq(_) | Message::SidrRep(_) => Vec::new(),
    }
}

fn of_req(req: &Req) -> Fields {
    let Path { local_lid, remote_lid, local_gid, remote_gid, .. } = req.primary;
    let mut fields = vec![
        ("infiniband.cm.req", number(req.local_comm_id)),
        ("infiniband.cm.req.serviceid", number(req.service_id.0)),
        ("infiniband.cm.req.localcaguid", number(req.ca_guid)),
        ("infiniband.cm.req.localqkey", number(req.qkey)),
        ("infiniband.cm.req.localqpn", number(req.qpn)),
        ("infiniband.cm.req.responderres", number(req.responder_resources)),
        ("infiniband.cm.req.localeecn", number(req.local_eecn)),
        ("infiniband.cm.req.initdepth", number(req.initiator_depth)),
        ("infiniband.cm.req.remoteeecn", number(req.remote_eecn)),
        ("infiniband.cm.req.remoteresptout", number(req.remote_response_timeout)),
        ("infiniband.cm.req.transpsvctype", number(req.transport_service)),
        ("infiniband.cm.req.e2eflowctrl", number(req.flow_control)),
        ("infiniband.cm.req.startpsn", number(req.starting_psn)),
        ("infiniband.cm.req.localresptout", number(req.local_response_timeout)),
        ("infiniband.cm.req.retrcount", number(req.retry_count)),
        ("infiniband.cm.req.pkey", number(req.pkey)),
        ("infiniband.cm.req.pppmtu", number(req.path_mtu)),
        ("infiniband.cm.req.rdcexist", number(req.rdc_exists)),
        ("infiniband.cm.req.rnrretrcount", number(req.rnr_retry_count)),
        ("infiniband.cm.req.maxcmretr", number(req.max_cm_retries)),
        ("infiniband.cm.req.srq", number(req.srq)),
        ("infiniband.cm.req.ext_transport", number(req.extended_transport)),
        ("infiniband.cm.req.prim_locallid", number(local_lid)),
        ("infiniband.cm.req.prim_remotelid", number(remote_lid)),
        ("infiniband.cm.req.prim_tfcclass", number(req.primary.traffic_class)),
        ("infiniband.cm.req.prim_hoplim", number(req.primary.hop_limit)),
        ("infiniband.cm.req.prim_sl", number(req.primary.service_level)),
        ("infiniband.cm.req.prim_subnetlocal", number(req.primary.subnet_local)),
        ("infiniband.cm.req.prim_localacktout", number(req.primary.ack_timeout)),
        ("infiniband.cm.req.alt_locallid", number(req.alternate.local_lid)),
        ("infiniband.cm.req.alt_remotelid", number(req.alternate.remote_lid)),
        ("infiniband.cm.req.alt_localgid", Value::Bytes(req.alternate.local_gid.octets().to_vec())),
        ("infiniband.cm.req.alt_remotegid", Value::Bytes(req.alternate.remote_gid.octets().to_vec())),
        ("infiniband.cm.req.alt_tfcclass", number(req.alternate.traffic_class)),
        ("infiniband.cm.req.alt_hoplim", number(req.alternate.hop_limit)),
        ("infiniband.cm.req.alt_sl", number(req.alternate.service_level)),
        ("infiniband.cm.req.alt_subnetlocal", number(req.alternate.subnet_local)),
        ("infiniband.cm.req.alt_localacktout", number(req.alternate.ack_timeout)),
    ];
    // tshark shows the last four bytes, because the packet is one of IPv4.
    let [local, remote] = [local_gid, remote_gid].map(|gid| Ipv4Addr::from_bits(gid.to_bits() as u32).into());
    fields.push(("infiniband.cm.req.prim_localgid_ipv4", Value::Address(local)));
    fields.push(("infiniband.cm.req.prim_remotegid_ipv4", Value::Address(remote)));
    match (req.service_id.as_ip(), IpHeader::parse(&req.private)) {
        (Some((_, port)), Some(header)) => {
            fields.push(("infiniband.cm.req.serviceid.dport", number(port)));
            fields.push(("infiniband.cm.req.ip_cm.ipv", number(6_u8)));
            fields.push(("infiniband.cm.req.ip_cm.sport", number(header.source.port())));
            fields.push(("infiniband.cm.req.ip_cm.sip6", Value::Address(header.source.ip())));
            fields.push(("infiniband.cm.req.ip_cm.dip6", Value::Address(header.destination)));
            fields.push(("infiniband.cm.req.ip_cm.private", Value::Bytes(req.private[IpHeader::LEN..].to_vec())));
        }
        _ => fields.push(("infiniband.cm.req.private", Value::Bytes(req.private.to_vec()))),
    }
    fields
}

fn of_rep(rep: &Rep) -> Fields {
    vec![
        ("infiniband.cm.rep", number(rep.local_comm_id)),
        ("infiniband.cm.rep.remotecommid", number(rep.remote_comm_id)),
        ("infiniband.cm.rep.localqkey", number(rep.qkey)),
        ("infiniband.cm.rep.localqpn", number(rep.qpn)),
        ("infiniband.cm.rep.localeecn", number(rep.local_eecn)),
        ("infiniband.cm.rep.startpsn", number(rep.starting_psn)),
        ("infiniband.cm.rep.respres", number(rep.responder_resources)),
        ("infiniband.cm.rep.initdepth", number(rep.initiator_depth)),
        ("infiniband.cm.rep.tgtackdelay", number(rep.target_ack_delay)),
        ("infiniband.cm.rep.failoveracc", number(rep.failover)),
        ("infiniband.cm.rep.e2eflowctrl", number(rep.flow_control)),
        ("infiniband.cm.rep.rnrretrcount", number(rep.rnr_retry_count)),
        ("infiniband.cm.rep.srq", number(rep.srq)),
        ("infiniband.cm.rep.localcaguid", number(rep.ca_guid)),
        ("infiniband.cm.rep.private", Value::Bytes(rep.private.to_vec())),
    ]
}

fn of_rej(rej: &Rej) -> Fields {
    vec![
        ("infiniband.cm.rej.localcommid", number(rej.local_comm_id)),
        ("infiniband.cm.rej.remotecommid", number(rej.remote_comm_id)),
        ("infiniband.cm.rej.msgrej", number(rej.message)),
        ("infiniband.cm.rej.rejinfolen", number(rej.ari_len)),
        ("infiniband.cm.rej.reason", number(rej.reason.0)),
        ("infiniband.cm.rej.ari", Value::Bytes(rej.ari.to_vec())),
        ("infiniband.cm.rej.private", Value::Bytes(rej.private.to_vec())),
    ]
}

fn of_dreq(dreq: &Dreq) -> Fields {
    vec![
        ("infiniband.cm.dreq.localcommid", number(dreq.local_comm_id)),
        ("infiniband.cm.dreq.remotecommid", number(dreq.remote_comm_id)),
        ("infiniband.cm.req.remoteqpneecn", number(dreq.remote_qpn)),
        ("infiniband.cm.dreq.private", Value::Bytes(dreq.private.to_vec())),
    ]
}

/// A message of that attribute with pseudo-random fields.
fn random(attribute: u16, seed: &mut u64) -> Message {
    let mut mad = Message::Req(Req::default()).emit(0, 0);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    for byte in &mut mad[MadHeader::LEN..] {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (*seed >> 56) as u8;
    }
    Message::parse(&mad).expect("any body is a message").1
}

/// The UDP payload that carries a MAD from QP 1 to QP 1.
fn datagram(mad: &Mad, envelope: &Envelope) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(Opcode::new(Service::Ud, Operation::SendOnly), mad::GSI_QPN, Psn::new(5)));
    headers.put(Deth { qkey: mad::GSI_QKEY.into(), src_qp: mad::GSI_QPN.into() });
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend(mad);
    let icrc = icrc::compute(envelope, &bytes);
    bytes.extend(icrc.to_le_bytes());
    bytes
}

/// What tshark prints of those fields for each MAD.
fn dissected(mads: &[Mad], names: &[&str]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mads.pcapng");
    let mut recorder = Recorder::create(&path, &RecorderOptions::default()).unwrap();
    let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let envelope = Envelope { src, dst, src_port: 20_500, dst_port: ROCE_PORT, ip_id: 0, dont_fragment: true };
    for mad in mads {
        let datagram = datagram(mad, &envelope);
        let mut head = [0; 14 + 48];
        head[12..14].copy_from_slice(&[8, 0]);
        let len = envelope.emit(datagram.len(), 0, 64, &mut head[14..]);
        fill_ipv4_checksum(&mut head[14..]);
        let info = PacketInfo { interface: 0, timestamp: 0, direction: Direction::Out, comment: "" };
        assert!(recorder.record(&info, &[&head[..14 + len], &datagram]));
    }
    recorder.finish().unwrap();
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args(["-n", "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]);
    for name in names {
        tshark.args(["-e", name]);
    }
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// The text as a value of the same kind.
fn parsed(text: &str, like: &Value) -> Option<Value> {
    Some(match like {
        Value::Number(_) => Value::Number(match (text, text.strip_prefix("0x")) {
            ("True", _) => 1,
            ("False", _) => 0,
            (_, Some(digits)) => u64::from_str_radix(digits, 16).ok()?,
            _ => text.parse().ok()?,
        }),
        Value::Address(_) => Value::Address(text.parse().ok()?),
        Value::Bytes(_) => {
            let digits = text.replace(':', "");
            let bytes = digits.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
            Value::Bytes(bytes.collect::<Option<_>>()?)
        }
    })
}

#[test]
#[ignore = "needs tshark"]
fn tshark_finds_every_field_where_weir_does() {
    const HEADER: [&str; 5] = [
        "infiniband.mad.mgmtclass",
        "infiniband.mad.attributeid",
        "infiniband.mad.transactionid",
        "infiniband.mad.attributemodifier",
        "_ws.malformed",
    ];
    let mut seed = 1;
    let mut messages: Vec<Message> =
        (0x10..=0x18).flat_map(|attribute| [attribute; 8]).map(|attribute| random(attribute, &mut seed)).collect();
    // Every other REQ is one of librdmacm.
    for message in messages.iter_mut().step_by(2) {
        if let Message::Req(req) = message {
            let header = IpHeader { source: "[fd00::1]:7".parse().unwrap(), destination: "fd00::2".parse().unwrap() };
            req.service_id = ServiceId::ip(PortSpace::TCP, 18515);
            req.private[..IpHeader::LEN].copy_from_slice(&header.emit());
        }
    }
    let fields: Vec<Fields> = messages.iter().map(fields).collect();
    let mut names = HEADER.to_vec();
    for (name, _) in fields.iter().flatten() {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let mads: Vec<Mad> = messages.iter().map(|message| message.emit(0x1234_5678_9abc_def0, 77)).collect();
    let rows = dissected(&mads, &names);
    assert_eq!(rows.len(), messages.len());
    for ((message, fields), row) in messages.iter().zip(fields).zip(rows) {
        let text = |wanted| &row[names.iter().position(|name| *name == wanted).unwrap()];
        assert_eq!(text("_ws.malformed"), "");
        let header = [CLASS_CM.into(), message.attribute().into(), 0x1234_5678_9abc_def0, 77].map(Value::Number);
        for (name, value) in HEADER.into_iter().zip(header).chain(fields) {
            assert_eq!(parsed(text(name), &value).as_ref(), Some(&value), "{name} of {message:?}: {:?}", text(name));
        }
    }
}
