//! Families of scenarios.

/// What a scenario is about. Whether it happens is up to the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Clean,
    Damming,
    /// The same operations and times as damming, on adapters without it, with losses.
    NoDamming,
    Flood,
    /// Many QPs and pages that take long, without flood.
    SlowPages,
    WriteFlood,
    OnDemand,
    Loss,
    Bursts,
    Late,
    Twice,
    Damaged,
    Marked,
    FullBuffers,
    SlowReceiver,
    TimerZero,
    WrongPeer,
    PeerStops,
    WrongKey,
    SmallMessages,
    /// Several of these at once.
    Mixed,
}

impl Family {
    /// All; those that are about the more difficult kinds stand here twice.
    pub const ALL: [Family; 25] = [
        Family::Clean,
        Family::Clean,
        Family::Damming,
        Family::Damming,
        Family::NoDamming,
        Family::Flood,
        Family::Flood,
        Family::SlowPages,
        Family::WriteFlood,
        Family::OnDemand,
        Family::Loss,
        Family::Loss,
        Family::Bursts,
        Family::Late,
        Family::Twice,
        Family::Damaged,
        Family::Marked,
        Family::FullBuffers,
        Family::SlowReceiver,
        Family::TimerZero,
        Family::WrongPeer,
        Family::PeerStops,
        Family::WrongKey,
        Family::SmallMessages,
        Family::Mixed,
    ];
}
