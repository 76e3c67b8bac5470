//! Functions of tables that the provider does not have. The headers call most of them without a look, so that each entry
//! must be a function.

use libc::ENOSYS;
use std::ffi::c_int;

/// What a function returns that does not exist.
pub trait Returned {
    const NONE: Self;
}

impl Returned for c_int {
    const NONE: c_int = -ENOSYS;
}

impl Returned for isize {
    const NONE: isize = -ENOSYS as isize;
}

/// Declares a function for each number of arguments.
macro_rules! functions {
    ($($name:ident($($argument:ident),*);)*) => {$(
        /// Fails with ENOSYS.
        #[allow(clippy::too_many_arguments)] // It stands for functions of the header.
        pub unsafe extern "C" fn $name<$($argument,)* R: Returned>($(_: $argument),*) -> R {
            R::NONE
        }
    )*};
}

functions! {
    no1(A);
    no2(A, B);
    no3(A, B, C);
    no4(A, B, C, D);
    no5(A, B, C, D, E);
}
