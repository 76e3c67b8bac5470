//! Where real programs run: [`weir_stage`].

pub use weir_stage::*;
