//! Memory of rings. Programs choose their size, so an allocation failure is an error and does not abort.

use std::collections::TryReserveError;

/// `count` copies of a value.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Result<Box<[T]>, TryReserveError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.resize(count, value);
    Ok(values.into())
}
