use super::*;

/// An Ethernet frame of IPv4 and UDP, from port 1 to port 2.
fn frame(to: u8, source: [u8; 4], vlan: bool) -> Vec<u8> {
    let mut frame = vec![to; 6];
    frame.extend([9; 6]);
    if vlan {
        frame.extend([0x81, 0, 0x20, 7]);
    }
    frame.extend([8, 0]);
    let mut ip = [0u8; 20];
    (ip[0], ip[9]) = (0x45, 17);
    ip[12..16].copy_from_slice(&source);
    frame.extend(ip);
    frame.extend([0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4]);
    frame
}

fn normal(priority: u16, pattern: Pattern) -> Rule {
    Rule { kind: Kind::Normal, priority, pattern, drops: false, counters: Vec::new() }
}

fn to(byte: u8) -> Pattern {
    let mut pattern = Pattern::default();
    pattern.add(Layer::Ethernet, 0, &[byte; 6], &[0xff; 6]);
    pattern
}

fn add(rules: &mut Rules, id: u64, rule: Rule) {
    rules.add(Entry { id, qp: id as u32, rule, to: Destination::Qp(id as u32) }).unwrap();
}

fn matching(rules: &Rules, frame: &[u8]) -> Vec<u64> {
    let headers = Headers::of(frame);
    rules.matching(frame, &headers).map(|entry| entry.id).collect()
}

#[test]
fn headers_are_found_behind_a_vlan_tag() {
    let plain = Headers::of(&frame(2, [1, 2, 3, 4], false));
    assert_eq!((plain.ether_type, plain.vlan, plain.ipv4, plain.udp), (Some(12), None, Some(14), Some(34)));
    let tagged = Headers::of(&frame(2, [1, 2, 3, 4], true));
    assert_eq!((tagged.ether_type, tagged.vlan, tagged.ipv4, tagged.udp), (Some(16), Some(14), Some(18), Some(38)));
    for len in 0..plain.udp.unwrap() + 8 {
        assert_eq!(Headers::of(&frame(2, [1, 2, 3, 4], false)[..len]).udp, None, "{len} bytes");
    }
}

#[test]
fn a_pattern_needs_all_its_fields() {
    let mut pattern = to(2);
    pattern.add(Layer::EtherType, 0, &[8, 0], &[0xff; 2]);
    pattern.need(Layer::Ipv4);
    pattern.add(Layer::Ipv4, 12, &[10, 1, 0, 0], &[255, 255, 0, 0]);
    pattern.add(Layer::Udp, 2, &[0, 2], &[0xff; 2]);
    pattern.add(Layer::Udp, 0, &[7, 7], &[0; 2]);
    let matches = |frame: &[u8]| pattern.matches(frame, &Headers::of(frame));
    assert!(matches(&frame(2, [10, 1, 7, 7], false)) && matches(&frame(2, [10, 1, 0, 1], true)));
    assert!(!matches(&frame(3, [10, 1, 7, 7], false)) && !matches(&frame(2, [10, 2, 7, 7], false)));
    assert!(!matches(&frame(2, [10, 1, 7, 7], false)[..30]) && !matches(&[]));
    assert_eq!(pattern.exact_destination(), Some([2; 6]));
}

#[test]
fn the_first_rule_by_priority_gets_a_frame_and_so_do_its_equals() {
    let mut rules = Rules::default();
    let default = |kind| Rule { kind, ..normal(0, Pattern::default()) };
    add(&mut rules, 1, default(Kind::AllDefault));
    add(&mut rules, 2, normal(5, to(2)));
    add(&mut rules, 3, normal(1, to(4)));
    add(&mut rules, 4, normal(5, to(2)));
    add(&mut rules, 5, default(Kind::MulticastDefault));
    assert_eq!(matching(&rules, &frame(2, [0; 4], false)), [2, 4]);
    assert_eq!(matching(&rules, &frame(4, [0; 4], false)), [3]);
    assert_eq!(matching(&rules, &frame(6, [0; 4], false)), [1]);
    assert!(rules.remove(1).is_some() && rules.remove(1).is_none());
    assert_eq!(matching(&rules, &frame(7, [0; 4], false)), [5], "multicast");
    assert!(matching(&rules, &frame(6, [0; 4], false)).is_empty());
}

/// What the kernel does with a program: true if it accepts the frame.
fn run(program: &[weir_link::FilterInstruction], frame: &[u8]) -> bool {
    let (mut at, mut accumulator) = (0, 0u32);
    loop {
        let step = program[at];
        let load = |len: usize| frame.get(step.k as usize..step.k as usize + len);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        at += 1;
        match step.code {
            0x20 => accumulator = number(load(4).unwrap()),
            0x28 => accumulator = number(load(2).unwrap()),
            0x54 => accumulator &= step.k,
            0x15 => at += usize::from(if accumulator == step.k { step.jt } else { step.jf }),
            0x06 => return step.k != 0,
            code => panic!("{code:#x}"),
        }
    }
}

#[test]
fn the_filter_accepts_what_a_rule_may_match() {
    let mut from = Pattern::default();
    from.add(Layer::Ethernet, 6, &[9, 9, 9, 9, 9, 1], &[0xff, 0xff, 0xff, 0xff, 0xff, 0]);
    let rules = [normal(0, to(2)), normal(0, to(4))];
    let accepts = |rules: &[Rule], to| run(&program(rules.iter()), &frame(to, [0; 4], false));
    assert_eq!([1, 2, 3, 4].map(|to| accepts(&rules, to)), [false, true, false, true]);
    assert!(accepts(&[normal(0, from)], 1));
    assert!(!accepts(&[], 2), "nothing is accepted without rules");
    let anywhere = normal(0, {
        let mut pattern = Pattern::default();
        pattern.need(Layer::Udp);
        pattern
    });
    assert!(program([&rules[0], &anywhere].into_iter()).is_empty(), "all frames");
}
