//! The tap of a watcher, and the packets that leave while there is one.

use crate::shared::route::Route;
use crate::tap::{Ends, Tap};
use weir_transport::{Egress, Outgoing, Refused};

/// The engine's tap, if a watcher watches.
#[derive(Default)]
pub struct TapState {
    pub tap: Option<Box<Tap>>,
    /// The engine's thread was asked to make or free it.
    pub asked: bool,
}

/// Records packets of one QP that have found room to leave.
pub struct Tapped<'a, E> {
    pub egress: E,
    tap: Option<&'a mut Tap>,
    own_qp: u32,
    route: Route,
}

impl<'a, E> Tapped<'a, E> {
    /// Packets of this QP, on this route.
    #[inline]
    pub fn new(egress: E, state: &'a mut TapState, own_qp: u32, route: Route) -> Tapped<'a, E> {
        Tapped { egress, tap: state.tap.as_deref_mut(), own_qp, route }
    }
}

impl<E: Egress> Egress for Tapped<'_, E> {
    #[inline]
    fn has_room(&self) -> bool {
        self.egress.has_room()
    }

    #[inline]
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        self.egress.push(packet)?;
        if let Some(tap) = &mut self.tap {
            let Route { local, remote, .. } = self.route;
            let ends =
                Ends { own_qp: self.own_qp, other_qp: packet.headers.bth.dest_qp, local, remote, over_links: false };
            tap.packet(true, ends, &packet.headers, packet.payload.len());
        }
        Ok(())
    }
}
