//! Memory of rings, which programs choose the size of: where there is not enough, that is an error and no abort.

use std::collections::TryReserveError;

/// So many copies of a value.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Result<Box<[T]>, TryReserveError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.resize(count, value);
    Ok(values.into())
}
