use std::time::Duration;
use weir_lab::micro::sim::Simulated;
use weir_lab::micro::{Micro, Operation, Outcome, Runner, Sides};
fn list(s: &str) -> weir_lab::micro::Guards {
    if s == "none" { Default::default() } else { s.parse().unwrap() }
}
#[test]
fn damming() {
    for (name, odp, step, last, profile) in [
        ("server", Sides { client: false, server: true }, 250, 7000, "connectx4"),
        ("client", Sides { client: true, server: false }, 50, 1500, "connectx4"),
        ("both", Sides { client: true, server: true }, 250, 7000, "connectx4"),
    ] {
        for g in ["none", "rnr", "dummy", "rnr,dummy", "reissue", "prefetch", "auto"] {
            let mut times = vec![];
            for i in (0..=last / step).map(|n| n * step) {
                for seed in 0..10 {
                    let m = Micro {
                        num_ops: 2,
                        interval: Duration::from_micros(i),
                        odp,
                        guards: list(g),
                        ..Micro::default()
                    };
                    let o = Simulated.run(&m, profile, seed).unwrap();
                    assert!(o.status.is_none());
                    times.push((o.time.as_secs_f64() * 1e3, i, seed, o.packets.requests));
                }
            }
            let mean = times.iter().map(|t| t.0).sum::<f64>() / times.len() as f64;
            let max = times.iter().copied().fold((0.0, 0, 0, 0), |a, b| if b.0 > a.0 { b } else { a });
            println!("{name:7} {g:10} mean {mean:.3} max {max:?}");
        }
    }
}
#[test]
fn flood() {
    for (num_ops, num_qps, size, t) in
        [(8192, 50, 100, 18), (8192, 200, 100, 18), (512, 128, 32, 18), (512, 128, 32, 1), (128, 128, 32, 18)]
    {
        for odp in [Sides { client: true, server: false }, Sides { client: true, server: true }] {
            for profile in ["connectx4", "connectx6"] {
                for g in ["none", "dummy", "reissue", "prefetch", "auto"] {
                    let mut ts = vec![];
                    for seed in 0..if num_ops > 1000 { 1 } else { 5 } {
                        let m =
                            Micro { num_ops, num_qps, size, odp, ack_timeout: t, guards: list(g), ..Micro::default() };
                        let o = Simulated.run(&m, profile, seed).unwrap();
                        ts.push((
                            format!("{:.2}", o.time.as_secs_f64() * 1e3),
                            o.packets.requests + o.packets.responses,
                            o.timeouts,
                            o.status,
                        ));
                    }
                    println!("{num_ops} {num_qps} client-odp server={} {profile} {g:10} {ts:?}", odp.server);
                }
            }
        }
    }
}
#[test]
fn nopit() {
    for (num_ops, num_qps, size, touched, odp, profile) in [
        (8192, 1, 100, false, false, "connectx4"),
        (8192, 1, 100, true, true, "connectx4"),
        (8192, 200, 100, true, true, "connectx4"),
        (2000, 4, 65536, true, true, "connectx4"),
        (8192, 4, 100, false, true, "ideal"),
        (8192, 4, 100, false, true, "connectx5"),
    ] {
        for op in [Operation::Read, Operation::Write, Operation::Send] {
            for g in ["none", "dummy", "reissue", "prefetch", "auto"] {
                let m = Micro {
                    operation: op,
                    num_ops,
                    num_qps,
                    size,
                    odp: Sides { client: odp, server: odp },
                    touched,
                    ack_timeout: 18,
                    guards: list(g),
                    ..Micro::default()
                };
                let o = Simulated.run(&m, profile, 1).unwrap();
                println!(
                    "{num_ops} {num_qps} {size} touched={touched} odp={odp} {profile} {op:?} {g:10} {:.3} {} {} {:?}",
                    o.time.as_secs_f64() * 1e3,
                    o.packets.requests + o.packets.responses,
                    o.timeouts,
                    o.status
                );
            }
        }
    }
}
#[test]
fn ladder() {
    let m = Micro {
        num_ops: 2,
        interval: Duration::from_micros(1000),
        odp: Sides { client: false, server: true },
        guards: list("dummy"),
        ..Micro::default()
    };
    let o = Simulated.run(&m, "connectx4", 3).unwrap();
    println!("L {:?}", o.completions);
    for s in &o.steps {
        println!(
            "L {:?} {} {} {:?} lost={}",
            s.time,
            if s.from_client { "->" } else { "<-" },
            s.what,
            s.operation,
            s.lost
        );
    }
}
#[test]
fn big() {
    let m = Micro {
        operation: Operation::Read,
        num_ops: 2000,
        num_qps: 4,
        size: 65536,
        odp: Sides { client: true, server: true },
        touched: true,
        ack_timeout: 18,
        guards: list("auto"),
        ..Micro::default()
    };
    let o = Simulated.run(&m, "connectx4", 1).unwrap();
    let slow = o.completions.iter().position(|c| c.unwrap() > Duration::from_millis(30));
    println!("B slow {slow:?} {:?}", &o.completions[..12]);
    let slow = slow.unwrap() as u32;
    let near: Vec<_> = o
        .completions
        .iter()
        .enumerate()
        .filter(|(i, _)| i % 4 == slow as usize % 4 && *i as i64 > slow as i64 - 24 && (*i as i64) < slow as i64 + 24)
        .collect();
    println!("B {near:?}");
    for s in o
        .steps
        .iter()
        .filter(|s| s.operation.is_none_or(|o| o % 4 == slow % 4 && (slow..slow + 16).contains(&(o + 8))))
        .take(140)
    {
        println!(
            "B {:?} {} {} {:?} lost={}",
            s.time,
            if s.from_client { "->" } else { "<-" },
            s.what,
            s.operation,
            s.lost
        );
    }
}
