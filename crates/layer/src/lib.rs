//! `libweir-layer.so`: a layer between a program and whatever libibverbs is there.
//!
//! `weir doctor` and `weir run --guard` preload it. It defines the control calls of libibverbs (`control`, `memory`), and replaces the
//! functions that the header's inline calls reach through a context (`post`), an extended QP (`builder`) and an
//! extended CQ (`cq_ex`). `dl` does the same for programs that open libibverbs by themselves. `objects` has what the
//! layer knows of each object. What it observes goes to a file (`file`), which `weir doctor` reads after the end of the
//! process. Guards are in a folder of their own (`guard`).
//!
//! Without the environment variables of `weir doctor` and `--guard` it only forwards calls. It prints nothing and uses no Weir
//! adapter.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("`biased`, `clock`, `dl` and `memory` have assembly for x86_64 and aarch64 only");

mod biased;
mod builder;
mod building;
mod clock;
mod contexts;
mod control;
mod cq;
mod cq_ex;
mod dl;
mod exports;
mod file;
mod fork;
mod guard;
mod lock;
mod locked;
mod map;
mod memory;
mod next;
mod objects;
mod post;
mod qp;
mod quiet;
mod real;
mod room;
