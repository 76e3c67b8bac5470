//! Address handles: destinations of datagrams, resolved once at creation.

use crate::Errno;
use crate::context::Pd;
use crate::room::with_room;
use crate::route::Route;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use weir_transport::AddressVector;

/// A destination of datagrams, resolved when it is created.
pub struct AddressHandle {
    pd: Arc<Pd>,
    number: u32,
}

impl Pd {
    /// Creates an address handle. EINVAL without a GRH, if a GID does not exist, or if the two GIDs do not match.
    pub fn create_ah(self: &Arc<Self>, av: &AddressVector) -> Result<AddressHandle, Errno> {
        let adapter = &self.context.adapter;
        adapter.check()?;
        let number = adapter.addresses.insert(adapter.route(av)?)?;
        self.attach();
        Ok(AddressHandle { pd: self.clone(), number })
    }
}

impl AddressHandle {
    /// The number that [`weir_transport::Datagram::address`] takes.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let adapter = &self.pd.context.adapter;
        if adapter.is_ours() {
            adapter.addresses.remove(self.number);
            self.pd.detach();
        }
    }
}

/// The routes of all address handles of an adapter, by number.
#[derive(Default)]
pub struct Addresses(RwLock<Vec<Option<Route>>>);

impl Addresses {
    /// All routes; threads that create or destroy an address handle wait meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, Vec<Option<Route>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, route: Route) -> Result<u32, Errno> {
        let write = || self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut routes = with_room(1, write, |routes| routes)?;
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

    fn remove(&self, number: u32) {
        if let Some(entry) = self.0.write().unwrap_or_else(PoisonError::into_inner).get_mut(number as usize) {
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
