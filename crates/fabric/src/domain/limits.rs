//! How large atomics may be.

use weir_fabric_abi::{fi_atomic_attr, fi_datatype, fi_op};
use weir_msg::{AtomicKind, Datatype, Operator, Settings};

/// How many elements an atomic may have. `None`: there is no such atomic.
pub fn atomic_limits(
    settings: &Settings,
    kind: AtomicKind,
    datatype: fi_datatype,
    op: fi_op,
) -> Option<fi_atomic_attr> {
    let datatype = Datatype::from_code(u8::try_from(datatype).ok()?)?;
    let operator = Operator::from_code(u8::try_from(op).ok()?)?;
    let count = settings.most_elements(kind, datatype);
    weir_msg::is_valid(kind, operator, datatype).then_some(fi_atomic_attr { count, size: datatype.size() })
}
