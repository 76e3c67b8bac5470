//! The embedded profiles, profile files of users, and the error messages for invalid files.

use std::time::Duration;
use weir_profiles::{Described, Error, Explained, all, describe, load, names, reseeded};
use weir_transport::edge::{Parameters, Scheduler};
use weir_transport::{
    Adaptive, Delay, DeviceAttributes, Flood, HostModel, OdpCaps, OdpOps, Profile, RequesterFaults, ResponderFaults,
    Spread,
};

/// Loads a file with this text.
fn file(text: &str) -> Result<Described, Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, text).expect("written");
    describe(path.to_str().expect("UTF-8"))
}

fn refused(text: &str) -> String {
    file(text).expect_err(text).to_string()
}

#[test]
fn a_reseeded_profile_differs_by_its_seed_only() {
    for name in names() {
        let same = file(&reseeded(name, 41).expect(name)).expect(name);
        let real = load(name).expect(name);
        assert_eq!(same.profile.seed, real.seed + 41);
        assert_eq!(Profile { seed: real.seed, name: real.name.clone(), ..same.profile }, real);
        assert_eq!(same.about, describe(name).expect(name).about);
    }
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine.toml");
    std::fs::write(&mine, "base = \"connectx6\"\n[page_faults]\nresolve_us = [1.5, 2]").unwrap();
    let same = file(&reseeded(mine.to_str().unwrap(), 1).unwrap()).unwrap().profile;
    assert_eq!(same.page_faults, load(mine.to_str().unwrap()).unwrap().page_faults);
    assert_eq!(file(&reseeded("ideal", u64::MAX).unwrap()).unwrap().profile.seed, 0, "it wraps");
}

#[test]
fn each_embedded_profile_has_all_keys_with_sources() {
    let all = all().expect("all can be read");
    assert_eq!(all.iter().map(|each| each.profile.name.as_str()).collect::<Vec<_>>(), names().collect::<Vec<_>>());
    let keys = |described: &Described| described.values.iter().map(|v| v.key.clone()).collect::<Vec<_>>();
    for each in &all {
        assert_eq!(keys(each), keys(&all[0]), "{}", each.profile.name);
        assert!(!each.about.is_empty());
        for value in &each.values {
            let name = &each.profile.name;
            assert!(!value.source.is_empty(), "{name}: {} has no source", value.key);
            assert!(!value.means.is_empty(), "{name}: {} has no meaning", value.key);
        }
        let own = ["profiles", "profiles/systems"].map(|folder| format!("{folder}/{}.toml", each.profile.name));
        let own = own.iter().find_map(|path| std::fs::read_to_string(path).ok()).expect("the file");
        let has_base = own.contains("\nbase = ");
        // No adapter uses several links as one, and most are in no particular machine: they have the values of Weir.
        let left_out = |section: &str| {
            let is_of = |value: &&Explained| value.key.starts_with(&format!("{section}."));
            if own.contains(&format!("[{section}]")) { 0 } else { each.values.iter().filter(is_of).count() }
        };
        let expected = each.values.len() - left_out("links") - left_out("host");
        for part in ["value = ", "source = \""] {
            let count = own.matches(part).count();
            assert!(has_base || count == expected, "the file sets all keys itself, or has a base");
        }
    }
}

#[test]
fn the_ideal_profile_equals_that_of_the_transport() {
    assert_eq!(load("ideal").expect("an embedded profile"), Profile::ideal());
}

#[test]
fn multiedge_is_ideal_with_the_parameters_of_the_thesis() {
    let multiedge = load("multiedge").expect("an embedded profile");
    assert_eq!(multiedge.links.parameters, Parameters::MULTIEDGE);
    assert_eq!(multiedge.links.scheduler, Scheduler::Dynamic);
    let links = Profile::ideal().links;
    assert_eq!(Profile { name: "ideal".into(), links, ..multiedge }, Profile::ideal());
    let mine = |text: &str| file(&format!("[links]\n{text}"));
    assert_eq!(mine("scheduler = \"wsrr\"").unwrap().profile.links.scheduler, Scheduler::WeightedRoundRobin);
    for wrong in ["window = 0", "window = 4098", "scheduler = \"fast\"", "coarse_timeout_us = 0"] {
        assert!(mine(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn connectx4_has_damming_and_flood() {
    let profile = load("connectx4").expect("an embedded profile");
    assert!(profile.on_demand && profile.damming && profile.rnr_wait.discards);
    assert!(matches!(profile.flood, Some(Flood { waiting: 16, .. })));
    assert!(matches!(profile.page_faults.requester, RequesterFaults::Discard { .. }));
    assert!(matches!(profile.page_faults.responder, ResponderFaults::RnrNak { .. }));
    assert_eq!(profile.ack_timeout.least_exponent, 16);
    assert!(!load("connectx6").expect("an embedded profile").damming);
    assert!(!load("connectx3").expect("an embedded profile").on_demand);
    assert_eq!(load("connectx5").expect("an embedded profile").ack_timeout.least_exponent, 12);
}

#[test]
fn connectx6_roce_is_a_connectx6_with_adaptive_retransmission() {
    let roce = load("connectx6-roce").expect("an embedded profile");
    let infiniband = load("connectx6").expect("an embedded profile");
    let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    assert_eq!((roce.name.as_str(), roce.ack_timeout.least_exponent), ("connectx6-roce", 16));
    assert_eq!(roce.ack_timeout.factor, Spread::exactly(2.0));
    // The end of the adaptive timeouts with each exponent, as measured, and how many count.
    for (exponent, end, count) in [(14, 440.4, 7), (16, 440.4, 7), (17, 977.2, 8), (18, 1782.5, 9), (20, 8225.1, 11)] {
        let adaptive = &roce.ack_timeout.adaptive;
        let short: Vec<_> = adaptive.steps.iter().filter(|step| **step <= roce.ack_timeout.t_tr(exponent)).collect();
        let sum: Duration = short.iter().copied().sum();
        assert!(short.len() == count && sum.abs_diff(millis(end)) < millis(1.0), "{exponent}: {short:?}");
        let free = (0..).take_while(|timeouts| !roce.ack_timeout.is_retry(*timeouts, exponent)).count();
        assert_eq!(free, count - 2);
    }
    assert_eq!(infiniband.ack_timeout.adaptive, Adaptive::default());
    assert_eq!(Profile { name: "connectx6".into(), ack_timeout: infiniband.ack_timeout.clone(), ..roce }, infiniband);
}

#[test]
fn connectx3_fdr_is_a_connectx3_in_a_machine() {
    let fdr = load("connectx3-fdr").expect("an embedded profile");
    let plain = load("connectx3").expect("an embedded profile");
    let host = fdr.host.expect("a machine");
    assert_eq!((host.tlp, host.line, host.event), (256, 64, Duration::from_nanos(800)));
    // F: messages of 4 MiB in sum fit into the cache, and those of 5 MiB do not.
    assert!((4 << 20..5 << 20).contains(&host.cache));
    assert_eq!(Profile { name: plain.name.clone(), host: None, ..fdr }, plain);
    let described = describe("connectx3-fdr").expect("an embedded profile");
    let of_host = described.values.iter().filter(|value| value.key.starts_with("host."));
    of_host.for_each(|value| assert_ne!(value.source, "not used", "{}", value.key));
    // Values of the base stay if a file turns the machine off and on.
    assert_eq!(file("base = \"connectx3-fdr\"\n[host]\non = false").unwrap().profile.host, None);
    let mine = file("base = \"connectx3-fdr\"\n[host]\ncache_kib = 20480").unwrap().profile.host;
    assert_eq!(mine, Some(HostModel { cache: 20 << 20, ..host }));
    assert!(file("[host]\non = true").unwrap().profile.host.is_some_and(|host| host.line_ns == 0.0));
}

#[test]
fn a_file_can_have_a_base_with_a_base() {
    let mine = file("base = \"connectx6-roce\"\n[ack_timeout]\nadaptive_ms = []").expect("a valid profile").profile;
    let infiniband = load("connectx6").expect("an embedded profile");
    assert_eq!(mine.ack_timeout.adaptive.steps, []);
    assert_eq!((mine.ack_timeout.factor, mine.flood), (Spread::exactly(2.0), infiniband.flood));
    assert!(infiniband.flood.is_some());
}

#[test]
fn each_adapter_has_the_attributes_that_its_driver_reports() {
    let of = |name: &str| load(name).expect("an embedded profile").device;
    let limits =
        |device: &DeviceAttributes| (device.max_qp_rd_atom, device.max_qp_init_rd_atom, device.local_ca_ack_delay);
    assert_eq!(limits(&of("ideal")), (16, 16, 15));
    assert_eq!(limits(&of("connectx3")), (16, 128, 15));
    assert_eq!(of("connectx3").odp, OdpCaps::default());
    let plain = OdpOps::SEND | OdpOps::RECV | OdpOps::WRITE | OdpOps::READ;
    let with_srq = plain | OdpOps::SRQ_RECV;
    let xrc = with_srq - OdpOps::RECV;
    let none = OdpOps::empty();
    for (name, rc, xrc) in [("connectx4", with_srq, none), ("connectx5", with_srq, xrc), ("connectx6", plain, none)] {
        assert_eq!(limits(&of(name)), (16, 16, 16), "{name}");
        assert_eq!(of(name).odp, OdpCaps { implicit: true, rc, uc: none, ud: OdpOps::SEND, xrc }, "{name}");
    }
    let mine =
        file("[device]\nmax_qp_init_rd_atom = 128\nodp_rc = [\"read\", \"atomic\"]\nodp_ud = []").expect("valid");
    assert_eq!(mine.profile.device.max_qp_init_rd_atom, 128);
    assert_eq!(mine.profile.device.odp.rc, OdpOps::READ | OdpOps::ATOMIC);
    assert_eq!((mine.profile.device.odp.ud, mine.profile.device.odp.xrc), (none, of("ideal").odp.xrc));
}

#[test]
fn a_file_overrides_values_of_its_base() {
    let mine = file(
        "about = \"mine\"\nbase = \"connectx4\"\n[ack_timeout]\nfactor = [3, 4]\n\
         [page_faults]\nresolve_us = { value = 1.5, source = \"measured\", note = \"at night\" }",
    )
    .expect("a valid profile");
    let base = load("connectx4").expect("an embedded profile");
    assert_eq!((mine.profile.name.as_str(), mine.about.as_str()), ("mine", "mine"));
    assert_eq!(mine.profile.ack_timeout.factor.high, 4.0);
    assert_eq!(mine.profile.page_faults.resolve, Delay::exactly(Duration::from_nanos(1500)));
    assert_eq!(mine.profile.rnr_wait, base.rnr_wait);
    let value = |key: &str| mine.values.iter().find(|value| value.key == key).expect("a value");
    assert_eq!(value("page_faults.resolve_us").source, "measured");
    assert_eq!(value("page_faults.resolve_us").note, "at night");
    assert!(value("ack_timeout.factor").source.ends_with("mine.toml"));
    // An empty file is the ideal profile.
    let empty = file("").expect("a valid profile").profile;
    assert_eq!(Profile { name: "ideal".into(), ..empty }, Profile::ideal());
}

#[test]
fn the_error_for_an_unknown_name_lists_the_known_ones() {
    let error = load("connectx7").expect_err("an unknown profile").to_string();
    for part in ["connectx7", "ideal, connectx3, connectx4, connectx5, connectx6, connectx6-roce"] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_missing_file_is_not_taken_for_a_name() {
    for path in ["./none.toml", "none.toml", "/nowhere/none"] {
        let error = load(path).expect_err("a missing file");
        assert!(matches!(&error, Error::Unreadable { path: said, .. } if said == path), "{error}");
    }
}

#[test]
fn errors_name_the_file_the_key_and_the_valid_values() {
    for (text, parts) in [
        ("[device]\nmax_qp_rd_atom = 0", &["device.max_qp_rd_atom = 0", "from 1 to 128"][..]),
        ("[device]\nmax_qp_init_rd_atom = 129", &["device.max_qp_init_rd_atom = 129", "from 1 to 128"]),
        ("[device]\nack_delay = 32", &["device.ack_delay = 32", "from 0 to 31"]),
        ("[device]\nodp_rc = \"send\"", &["device.odp_rc = \"send\"", "a list of", "srq_recv", "atomic_write"]),
        ("[device]\nodp_ud = [\"send\", \"read\"]", &["device.odp_ud", "a list of any of send, recv, srq_recv"]),
        ("[device]\nodp_xrc = [\"recv\"]", &["device.odp_xrc", "of send, srq_recv, write"]),
        ("[device]\nodp_uc = [1]", &["device.odp_uc = [1]", "send, recv, srq_recv, write"]),
        ("[ack_timeout]\nfaktor = 1", &["ack_timeout.faktor", "ack_timeout.factor"]),
        ("[akc]\nfactor = 1", &["akc.factor", "unknown key"]),
        ("[ack_timeout]\nfactor = 5", &["ack_timeout.factor", "from 1 to 4"]),
        ("[ack_timeout]\nfactor = [3, 2]", &["ack_timeout.factor", "the lower first"]),
        ("[ack_timeout]\nfactor = [1, 2, 3]", &["ack_timeout.factor"]),
        ("[ack_timeout]\nleast_exponent = 32", &["ack_timeout.least_exponent = 32", "from 0 to 31"]),
        ("[ack_timeout]\nleast_exponent = 1.5", &["ack_timeout.least_exponent = 1.5", "whole"]),
        ("[ack_timeout]\nadaptive_ms = 4", &["ack_timeout.adaptive_ms = 4", "a list"]),
        ("[ack_timeout]\nadaptive_ms = [4, 0]", &["ack_timeout.adaptive_ms", "from 0.001"]),
        ("[ack_timeout]\nadaptive_ms = [1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8]", &["adaptive_ms", "up to 16"]),
        ("[ack_timeout]\nadaptive_retries = -1", &["ack_timeout.adaptive_retries = -1", "from 0"]),
        ("[rnr_wait]\ndiscards = 1", &["rnr_wait.discards = 1", "true or false"]),
        ("[requester_faults]\nway = \"drop\"", &["requester_faults.way", "wait, discard"]),
        ("[requester_faults]\nway = \"discard\"", &["requester_faults.retransmit_us", "at least 1 µs"]),
        ("[damming]\non = true", &["damming.on = true", "false if adapter.repeated_read_us is 0"]),
        ("[flood]\non = true\nstale_us = 1", &["flood.on", "discarding"]),
        ("[flood]\non = true", &["flood.stale_us = 0", "at least 1 µs"]),
        ("base = \"connectx4\"\n[flood]\nstale_us = 0.9", &["flood.stale_us = 0.9", "at least 1 µs"]),
        ("[page_faults]\nresolve_us = -1", &["page_faults.resolve_us = -1"]),
        ("[page_faults]\nresolve_us = { value = 1, because = \"so\" }", &["page_faults.resolve_us", "source"]),
        ("[page_faults]\nresolve_us = { source = \"none\" }", &["page_faults.resolve_us", "value"]),
        ("[host]\ntlp_bytes = 200", &["host.tlp_bytes = 200", "a power of two from 128 to 4096"]),
        ("[host]\nline_bytes = 256", &["host.line_bytes = 256", "from 32 to 128"]),
        ("[host]\nline_ns = -1", &["host.line_ns = -1"]),
        ("[host]\nremote_factor = 0.5", &["host.remote_factor = 0.5", "from 1 to 100"]),
        ("base = \"connectx7\"", &["base", "connectx6"]),
        ("base = 4", &["base = 4", "a string"]),
        ("damming = true", &["damming = true", "a section"]),
        ("[damming", &["not valid TOML", "line 1"]),
    ] {
        let error = refused(text);
        for part in parts {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(error.contains("mine.toml"), "{error}");
    }
}

#[test]
fn systems_have_the_values_of_their_adapters() {
    for (name, adapter) in [("private-a", "connectx3"), ("abci", "connectx4"), ("azure-hcr", "connectx5")] {
        let [system, adapter] = [name, adapter].map(|name| load(name).expect("an embedded profile"));
        assert_eq!(Profile { name: adapter.name.clone(), ..system }, adapter);
    }
}
