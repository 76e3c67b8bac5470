//! libibverbs.so.1: the C ABI of verbs, served by weir-device
