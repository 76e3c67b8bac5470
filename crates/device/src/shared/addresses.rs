//! The routes of address handles.

use crate::Errno;
use crate::os::grow::with_room;
use crate::os::locks::{RankedReadGuard, RankedRwLock, rank};
use crate::shared::route::Route;

/// The routes of all address handles of an adapter, by number.
#[derive(Default)]
pub struct Addresses(RankedRwLock<Vec<Option<Route>>, { rank::ADDRESSES }>);

impl Addresses {
    /// All routes; threads that create or destroy an address handle wait meanwhile.
    pub fn read(&self) -> RankedReadGuard<'_, Vec<Option<Route>>, { rank::ADDRESSES }> {
        self.0.read()
    }

    /// Adds a route; its number. ENOMEM without memory.
    pub fn insert(&self, route: Route) -> Result<u32, Errno> {
        let mut routes = with_room(1, || self.0.write(), |routes| routes)?;
        Ok(match routes.iter().position(Option::is_none) {
            Some(free) => {
                routes[free] = Some(route);
                free as u32
            }
            None => {
                routes.push(Some(route));
                routes.len() as u32 - 1
            }
        })
    }

    /// Removes a route.
    pub fn remove(&self, number: u32) {
        if let Some(entry) = self.0.write().get_mut(number as usize) {
            *entry = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let addresses = Addresses::default();
        let route = |last| Route { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, last].into(), ifindex: 0, hops: 0 };
        assert_eq!([2, 3, 4].map(|last| addresses.insert(route(last)).unwrap()), [0, 1, 2]);
        addresses.remove(1);
        assert_eq!(addresses.insert(route(5)), Ok(1));
        assert_eq!(addresses.read()[1], Some(route(5)));
    }
}
