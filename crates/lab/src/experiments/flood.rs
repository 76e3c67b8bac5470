//! Many READs over many QPs: packet flood (T fig. 5.7, P fig. 9).

use super::common::*;
use crate::adapter::Adapter;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Band, Panel, Point, Series};
use crate::micro::{Micro, Operation, Outcome, Sides};
use crate::statistics::median;
use anyhow::Result;

pub const EXPERIMENT: Experiment = Experiment {
    id: "flood",
    title: "Packet flood: many READs over many QPs",
    source: "T fig. 5.7 and 5.2.3, P fig. 9",
    not_simulated: None,
    not_live: |_| None,
    paper: "8192 READs of 100 bytes over 200 pages, distributed over 1 to 200 QPs. With few QPs the time almost \
            stays within that of the page faults, 250–1000 µs each; beyond 10 QPs the run becomes up to 3000 times \
            slower than without ODP. With client-side ODP hundreds of times as many packets cross the wire. With \
            server-side ODP there is no flood of packets; the authors found damming and its timeouts there, and \
            longer timeouts with many QPs.",
    figures: &[
        PaperFigure {
            name: "T fig. 5.7a, P fig. 9a",
            axes: "Execution time over the number of QPs, of which the text names 10 and, in T 5.2.4, 200. A grey \
                   bar shows the time of 200 faults of 250–1000 µs, 50 to 200 ms. The text states no scale.",
            shows: "Lines without ODP, and with ODP on the server, on the client and on both sides. Up to 10 QPs \
                    the time is almost within the grey bar; beyond, it is as much as 3000 times that without ODP.",
            here: "Both axes are logarithmic, with eight numbers of QPs and one trial of each. The grey band is \
                   the same.",
            drawings: 1,
        },
        PaperFigure {
            name: "T fig. 5.7b, P fig. 9b",
            axes: "Number of packets in the capture over the number of QPs. The text states no scale.",
            shows: "With client-side ODP hundreds of times as many packets as without ODP; with server-side ODP no \
                    such increase.",
            here: "Requests and responses of both hosts. Both axes are logarithmic.",
            drawings: 1,
        },
    ],
    fixed_adapters: false,
    one_seed: false,
    run,
};

/// Numbers of QPs; the text names 10, 100 and 200.
pub const QPS: [u32; 8] = [1, 2, 5, 10, 20, 50, 100, 200];
/// The sides with ODP.
pub const SIDES: [Sides; 4] = [NONE, SERVER, CLIENT, BOTH];

const FEW: &str = "almost within 50 – 200 ms (200 faults of 250–1000 µs)";
/// Two observations of the thesis that contradict each other.
const WAITS: &str = "T fig. 4.2 and 5.3: each RNR wait takes about 4 ms. With one QP, 200 pages on the server cost 200 such \
                     waits one after the other, 0.8 to 0.9 s; the figure has 50 to 200 ms";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let adapter = Adapter::named("connectx4");
    let sweep = Sweep::measure(bench, Operation::Read, &adapter, &SIDES, &QPS)?;
    let slow = |sides| sweep.time(sides, 200) / sweep.time(NONE, 200);
    let worst = |sides| most(QPS.iter().map(|q| sweep.time(sides, *q) / sweep.time(NONE, *q)));
    let few = |sides| most([1, 2, 5].map(|qps| sweep.time(sides, qps)));
    // Runs in which READs are dammed: two on each QP, 1000 µs apart. Such a run takes one timeout (T 5.2.3).
    let dammed = |num_qps: &u32| Micro {
        num_ops: 2 * num_qps,
        num_qps: *num_qps,
        // Each post takes 60 µs more.
        interval: us(1000 / num_qps - 60),
        odp: SERVER,
        ..Micro::default()
    };
    let lasting = |_: &u32, o: &Outcome| if o.timeouts > 0 { took(o) } else { f64::NAN };
    let timeouts = bench.measure(bench.trials(10), &[1, 15], dammed, lasting)?;
    let mut claims = vec![
        Claim::at_most(Shaped, "client side, up to 5 QPs: time", FEW, 300.0, few(CLIENT), "ms")
            .lacks_live(bench.live, LIVE_POSTS),
        Claim::at_most(Predicted, "both sides, up to 5 QPs: time", FEW, 300.0, few(BOTH), "ms").conflicts(WAITS),
        Claim::at_most(
            Predicted,
            "client side, one QP: packets against no ODP",
            "the increase did not happen with only one QP",
            2.0,
            sweep.packets(CLIENT, 1) / sweep.packets(NONE, 1),
            "times",
        )
        .from("T 5.2.4"),
        Claim::at_most(
            Shaped,
            "server side, up to 10 QPs: time",
            "essentially normal",
            300.0,
            most([1, 2, 5, 10].map(|qps| sweep.time(SERVER, qps))),
            "ms",
        )
        .from("T 5.2.1")
        .conflicts(WAITS),
        Claim::between(
            Shaped,
            "slowest of all, against no ODP",
            "as much as 3000 times",
            (2000.0, 4000.0),
            most([CLIENT, BOTH, SERVER].map(worst)),
            "times",
        )
        .lacks(
            "The text does not give the time without ODP. Here it is that of the posts, 0.2 µs each, which is an \
             assumption; with 0.3 µs the factor is below 3000.",
        )
        .lacks_live(bench.live, LIVE_POSTS),
        Claim::at_most(
            Shaped,
            "server side, packets against no ODP: maximum",
            "no flood of packets",
            5.0,
            most(QPS.iter().map(|q| sweep.packets(SERVER, *q) / sweep.packets(NONE, *q))),
            "times",
        ),
        Claim::at_least(
            Shaped,
            "server side, 200 QPs, against no ODP",
            "too slow to ignore",
            650.0,
            slow(SERVER),
            "times",
        )
        .lacks_live(bench.live, LIVE_POSTS),
        Claim::at_least(
            Shaped,
            "server side, 200 QPs: timeouts",
            "packet loss and timeouts",
            1.0,
            sweep.timeouts(SERVER, 200),
            "",
        ),
        Claim::at_least(
            Predicted,
            "dammed READs, 15 QPs against 1: the timeout",
            "lengthened with multiple QPs",
            1.3,
            middle(&timeouts[1], |t| *t) / middle(&timeouts[0], |t| *t),
            "times",
        )
        .lacks("Many QPs do not load this adapter: its timers are as exact as with one QP."),
    ];
    let mut more = vec![];
    if bench.profile.is_none() {
        let alone = Adapter::named("connectx4").undammed();
        let alone = Sweep::measure(bench, Operation::Read, &alone, &[NONE, CLIENT], &QPS)?;
        claims.extend(of_flood_alone(&alone, bench.live));
        more = vec![("undammed", alone.data())];
    }
    Ok(Report { claims, panels: sweep.panels("READs"), data: sweep.data(), more, ..Report::default() })
}

/// Claims about client-side flood, without damming: with it, a few dammed READs and their timeouts are enough for seconds.
fn of_flood_alone(sweep: &Sweep, live: bool) -> Vec<Claim> {
    let against = |many: u32, few: u32| sweep.time(CLIENT, many) / sweep.time(CLIENT, few);
    let packets = QPS.iter().map(|q| sweep.packets(CLIENT, *q) / sweep.packets(NONE, *q));
    vec![
        Claim::between(
            Shaped,
            "client side, 200 QPs, without damming: time",
            "in the order of seconds",
            (1000.0, 10_000.0),
            sweep.time(CLIENT, 200),
            "ms",
        )
        .from("T 5.2"),
        Claim::at_least(
            Shaped,
            "client side, without damming: 20 QPs against 5",
            "degrades drastically beyond 10 QPs",
            5.0,
            against(20, 5),
            "times",
        )
        .from("T 5.2.1")
        .lacks_live(live, LIVE_POSTS),
        Claim::at_least(
            Shaped,
            "client side, without damming: 200 QPs against 10",
            "degrades drastically beyond 10 QPs",
            5.0,
            against(200, 10),
            "times",
        )
        .from("T 5.2.1"),
        Claim::between(
            Shaped,
            "client side, without damming: packets against no ODP, maximum",
            "hundreds",
            (100.0, 1000.0),
            most(packets),
            "times",
        )
        .lacks_live(live, LIVE_PACE),
    ]
}

/// Why a live run is slower without ODP.
const LIVE_POSTS: &str = "Live, two processes need 30 to 300 ms for 8192 READs without ODP, most with one QP; in the simulation \
                          it is 2 to 4 ms.";

/// Why a live run has fewer packets.
const LIVE_PACE: &str = "Live, two processes on one machine take turns at its cores, so that a requester repeats its READs \
                         less often than an adapter does.";

/// Times and packets by side and number of QPs: figures 5.7, 5.10, A.1 and A.3.
pub struct Sweep {
    /// Operations of each run.
    num_ops: u32,
    keys: Vec<(Sides, u32)>,
    found: Vec<Vec<[f64; 3]>>,
}

impl Sweep {
    /// 8192 operations of 100 bytes, fewer where the bench
    /// shrinks them, for each choice of sides and each number of QPs; by default one trial of each.
    pub fn measure(
        bench: &Bench<'_>,
        operation: Operation,
        adapter: &Adapter,
        sides: &[Sides],
        qps: &[u32],
    ) -> Result<Sweep> {
        let keys: Vec<(Sides, u32)> = sides.iter().flat_map(|sides| qps.iter().map(move |n| (*sides, *n))).collect();
        // A live flood of READs takes seconds; of WRITEs, minutes.
        let whole = bench.live && operation == Operation::Read;
        let num_ops = if whole { 8192 } else { 8192 / bench.shrink };
        let many = |&(odp, num_qps): &_| {
            Micro { operation, num_ops, num_qps, size: 100, odp, ack_timeout: 18, ..Micro::default() }
                .on_changed(adapter.clone())
        };
        let take = |_: &_, o: &Outcome| [took(o), (o.packets.requests + o.packets.responses) as f64, o.timeouts as f64];
        let found = bench.measure(bench.trials(1), &keys, many, take)?;
        Ok(Sweep { num_ops, keys, found })
    }

    fn all(&self, sides: Sides, qps: u32) -> impl Iterator<Item = &[f64; 3]> {
        let wanted = move |(key, _): &(&(Sides, u32), &Vec<[f64; 3]>)| *key == &(sides, qps);
        self.keys.iter().zip(&self.found).filter(wanted).flat_map(|(_, trials)| trials)
    }

    fn median_of(&self, sides: Sides, qps: u32, which: usize) -> f64 {
        let whole = self.all(sides, qps).all(|trial| trial[0].is_finite());
        if !whole {
            return f64::NAN;
        }
        median(&self.all(sides, qps).map(|trial| trial[which]).collect::<Vec<_>>())
    }

    /// Median time, ms; NaN if a trial failed.
    pub fn time(&self, sides: Sides, qps: u32) -> f64 {
        self.median_of(sides, qps, 0)
    }

    /// Median number of packets of both sides; NaN if a trial failed.
    pub fn packets(&self, sides: Sides, qps: u32) -> f64 {
        self.median_of(sides, qps, 1)
    }

    /// Median number of ACK timeouts; NaN if a trial failed.
    pub fn timeouts(&self, sides: Sides, qps: u32) -> f64 {
        self.median_of(sides, qps, 2)
    }

    /// Charts of times and of packets over the number of QPs; `what` names the operations.
    pub fn panels(&self, what: &str) -> Vec<Panel> {
        let series = |which: usize| {
            let line = |sides: &Sides| {
                let selected = self.keys.iter().zip(&self.found).filter(|((key, _), _)| key == sides);
                let points = selected.map(|((_, qps), trials)| {
                    point(f64::from(*qps), &trials.iter().map(|trial| trial[which]).collect::<Vec<_>>())
                });
                Series::line(side(*sides), points.collect::<Vec<Point>>())
            };
            SIDES.iter().map(line).collect::<Vec<_>>()
        };
        let pages = f64::from(self.num_ops) * 100.0 / 4096.0;
        let mut time = Panel::new(
            format!("{} {what}: time", self.num_ops),
            Axis::log("number of QPs"),
            Axis::log("time (ms)"),
            series(0),
        );
        time.bands.push(Band { name: format!("{pages:.0} faults of 250–1000 µs"), low: pages * 0.25, high: pages });
        vec![
            time,
            Panel::new(
                format!("{} {what}: packets", self.num_ops),
                Axis::log("number of QPs"),
                Axis::log("packets"),
                series(1),
            ),
        ]
    }

    /// A row for each trial.
    pub fn data(&self) -> Data {
        let mut data = Data::new(["side", "QPs", "trial", "time ms", "packets", "timeouts"]);
        for ((sides, qps), trials) in self.keys.iter().zip(&self.found) {
            for (trial, [time, packets, timeouts]) in trials.iter().enumerate() {
                data.push([
                    side(*sides).into(),
                    (*qps).into(),
                    trial.into(),
                    (*time).into(),
                    (*packets).into(),
                    (*timeouts).into(),
                ]);
            }
        }
        data
    }
}
