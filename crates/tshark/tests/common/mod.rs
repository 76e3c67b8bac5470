//! What `contrib/weir.lua` in tshark prints.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::Path;
use std::process::Command;
use weir_capture::{Direction, PacketInfo, Recorder, RecorderOptions};
use weir_wire::ip::{Envelope, fill_ipv4_checksum};

/// Writes datagrams between two slots to a capture file, and returns the fields that tshark prints.
pub fn dissected(datagrams: &[Vec<u8>], fields: &[&str]) -> Vec<Vec<String>> {
    dissected_between([20_500, 20_501], datagrams, fields)
}

/// The same between these ports.
pub fn dissected_between(ports: [u16; 2], datagrams: &[Vec<u8>], fields: &[&str]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.pcapng");
    let mut recorder = Recorder::create(&path, &RecorderOptions::default()).unwrap();
    let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let envelope = Envelope { src, dst, src_port: ports[0], dst_port: ports[1], ip_id: 0, dont_fragment: true };
    for datagram in datagrams {
        let mut head = [0; 14 + 48];
        head[12..14].copy_from_slice(&[8, 0]);
        let len = envelope.emit(datagram.len(), 0, 64, &mut head[14..]);
        fill_ipv4_checksum(&mut head[14..]);
        let info = PacketInfo { interface: 0, timestamp: 0, direction: Direction::Out, comment: "" };
        assert!(recorder.record(&info, &[&head[..14 + len], datagram]));
    }
    recorder.finish().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/weir.lua");
    let mut tshark = Command::new("tshark");
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(&path);
    tshark.args(["-n", "-T", "fields", "-E", "separator=/t"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    // tshark versions print booleans as 1 or True, 0 or False.
    let plain = |field: &str| match field {
        "True" => "1".to_owned(),
        "False" => "0".to_owned(),
        _ => field.to_owned(),
    };
    text.lines().map(|line| line.split('\t').map(plain).collect()).collect()
}
