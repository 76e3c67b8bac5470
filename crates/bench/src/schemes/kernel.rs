//! Kernels of our own (`kernels/*.c`): patterns of communication like those of programs that cannot be had here. Each checks
//! its results.

use crate::mpi::{self, Build};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Gradient,
    Sort,
    Transpose,
    Arrays,
}

const HEADER: &str = include_str!("kernels/kernel.h");

impl Kernel {
    /// Compiles it into this folder.
    pub fn build(self, folder: &Path) -> Result<PathBuf> {
        let (name, source) = match self {
            Kernel::Gradient => ("gradient", include_str!("kernels/gradient.c")),
            Kernel::Sort => ("sort", include_str!("kernels/sort.c")),
            Kernel::Transpose => ("transpose", include_str!("kernels/transpose.c")),
            Kernel::Arrays => ("arrays", include_str!("kernels/arrays.c")),
        };
        let files = [(format!("{name}.c"), source), ("kernel.h".to_owned(), HEADER)];
        let files = files.each_ref().map(|(file, text)| (file.as_str(), *text));
        mpi::compile(Build::OpenMpi, folder, name, &files, &["-Werror", "-lm"])
    }

    /// Its argument: how often the kernel's step is done; for `Arrays`, blocks in a row of its matrices.
    pub fn steps(self, quick: bool) -> u32 {
        match self {
            Kernel::Gradient => {
                if quick {
                    1
                } else {
                    5
                }
            }
            Kernel::Sort => {
                if quick {
                    5
                } else {
                    20
                }
            }
            Kernel::Transpose => {
                if quick {
                    10
                } else {
                    50
                }
            }
            Kernel::Arrays => {
                if quick {
                    6
                } else {
                    12
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They run in the end-to-end tests.
    #[test]
    fn each_kernel_compiles() {
        if !weir_stage::missing(["mpicc.openmpi", "cc"]).is_empty() {
            return eprintln!("skipped: mpicc.openmpi is not installed");
        }
        for kernel in [Kernel::Gradient, Kernel::Sort, Kernel::Transpose, Kernel::Arrays] {
            let folder = tempfile::tempdir().unwrap();
            assert!(kernel.build(folder.path()).unwrap().is_file());
        }
    }
}
