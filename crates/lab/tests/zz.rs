use weir_lab::edge::*;
#[test]
fn explore() {
    let t0 = std::time::Instant::now();
    let show = |name: &str, s: &Setting| {
        let f = sim::found(s).unwrap();
        let p = |c: Cpu| c.parts().map(|x| (x * 100.0).round()).map(|x| x.to_string()).join(" ");
        println!(
            "{name:28} {:8} {:>7} {:7.0} MB/s {:6.2} Gb lat {:7.2} init {:7.2} | {} | {}",
            s.links.name(),
            s.size,
            f.megabytes(),
            f.gbits,
            f.latency,
            f.initiate,
            p(f.cpu[0]),
            p(f.cpu[1])
        );
    };
    let sets = [
        Links::of(1, 1.0),
        Links::of(2, 1.0),
        Links::of(4, 1.0),
        Links::of(6, 1.0),
        Links::of(8, 1.0),
        Links::of(1, 10.0),
    ];
    for test in Test::ALL {
        for l in &sets {
            for size in [4, 4096, 131072, 1 << 20] {
                show(&format!("base {}", test.name()), &Setting::base(l.clone(), test, size));
            }
        }
    }
    for test in Test::ALL {
        for l in &sets[3..] {
            for size in [4, 131072] {
                show(&format!("poll {}", test.name()), &Setting::base(l.clone(), test, size).polling());
                show(
                    &format!("nocopy {}", test.name()),
                    &Setting::base(l.clone(), test, size).moving(Sending::Skipped, Receiving::Skipped),
                );
            }
        }
    }
    for test in Test::ALL {
        for size in [4, 2048, 4096, 16384, 131072, 1 << 20] {
            let z = || Setting::zero_copy(test, size);
            show(&format!("CP {}", test.name()), &z());
            show(&format!("NoTx {}", test.name()), &z().moving(Sending::Skipped, Receiving::Copied));
            for f in [Flush::None, Flush::Full, Flush::Selective] {
                show(&format!("PinMap {f:?} {}", test.name()), &z().moving(Sending::Gathered, Receiving::Remapped(f)));
            }
            show(&format!("NoCP {}", test.name()), &z().moving(Sending::Skipped, Receiving::Skipped));
        }
    }
    for test in [Test::OneWay, Test::TwoWay] {
        for size in [4096, 8192, 16384, 32768, 65536, 131072, 262144, 1 << 20] {
            for sch in weir_transport::edge::Scheduler::ALL {
                let s = Setting {
                    scheduler: sch,
                    ..Setting::base(Links::rated(vec![10.0, 1.0, 1.0, 1.0, 1.0]), test, size)
                }
                .polling()
                .moving(Sending::Skipped, Receiving::Skipped);
                show(&format!("{sch:?} {}", test.name()), &s);
            }
        }
    }
    println!("{:?}", t0.elapsed());
}
