//! Address handles: destinations of datagrams, resolved once at creation.

use crate::Errno;
use crate::objects::pd::Pd;
use std::sync::Arc;
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
        let number = adapter.addresses.insert(adapter.route(av, None)?)?;
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
            adapter.send_gathered();
            adapter.addresses.remove(self.number);
            self.pd.detach();
        }
    }
}
