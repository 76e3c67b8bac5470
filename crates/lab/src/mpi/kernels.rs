//! Patterns of communication like those of M's applications.
//!
//! The kernels are our own: they have the messages, their order, and where a process computes, but no arithmetic. M names the
//! applications and their inputs, and for some the time with Pin-down. Lengths of messages follow from the inputs; how long a
//! process computes follows from M's times where there are some, and otherwise from operations ([`flops`]).

mod flops;
mod grid;
mod lammps;
mod nas;
mod sweep;
mod waves;
mod windows;

pub use grid::Grid;

use super::script::Script;

/// An application of M.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Bt,
    Cg,
    Lu,
    Mg,
    Sp,
    LammpsLj,
    LammpsEam,
    Awp256,
    Awp512,
    Boltzmann,
    Lennard,
}

/// A kernel's program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Each marks the time before each of its steps.
    pub scripts: Vec<Script>,
    /// Steps of the whole run.
    pub steps: u32,
}

impl Kernel {
    /// In the order of M's tables.
    pub const ALL: [Kernel; 11] = [
        Kernel::Bt,
        Kernel::Cg,
        Kernel::Lu,
        Kernel::Mg,
        Kernel::Sp,
        Kernel::LammpsLj,
        Kernel::LammpsEam,
        Kernel::Awp256,
        Kernel::Awp512,
        Kernel::Boltzmann,
        Kernel::Lennard,
    ];

    /// "like NAS-BT".
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Bt => "like NAS-BT",
            Kernel::Cg => "like NAS-CG",
            Kernel::Lu => "like NAS-LU",
            Kernel::Mg => "like NAS-MG",
            Kernel::Sp => "like NAS-SP",
            Kernel::LammpsLj => "like Lammps-LJ",
            Kernel::LammpsEam => "like Lammps-EAM",
            Kernel::Awp256 => "like AWP-ODC 256³",
            Kernel::Awp512 => "like AWP-ODC 512³",
            Kernel::Boltzmann => "like Boltzmann",
            Kernel::Lennard => "like Lennard",
        }
    }

    /// The program for so many processes, with so many steps.
    pub fn program(self, processes: usize, simulated: u32) -> Program {
        let grid = Grid::new(processes);
        let (mut scripts, steps) = match self {
            Kernel::Bt => (sweep::scripts(&grid, &sweep::BT), 200),
            Kernel::Sp => (sweep::scripts(&grid, &sweep::SP), 400),
            Kernel::Cg => (nas::cg(&grid), nas::CG_STEPS),
            Kernel::Lu => (nas::lu(&grid), 250),
            Kernel::Mg => (nas::mg(&grid), 20),
            Kernel::LammpsLj => (lammps::scripts(&grid, &lammps::LJ), lammps::STEPS),
            Kernel::LammpsEam => (lammps::scripts(&grid, &lammps::EAM), lammps::STEPS),
            Kernel::Awp256 => (waves::scripts(&grid, 256), waves::STEPS),
            Kernel::Awp512 => (waves::scripts(&grid, 512), waves::STEPS),
            Kernel::Boltzmann => (windows::boltzmann(&grid), windows::BOLTZMANN_STEPS),
            Kernel::Lennard => (windows::lennard(&grid), windows::LENNARD_STEPS),
        };
        for script in &mut scripts {
            script.body.insert(0, super::script::Op::Mark);
            script.last.push(super::script::Op::Mark);
            script.times = simulated;
        }
        Program { scripts, steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpi::script::Op;
    use std::collections::BTreeMap;

    /// For each pair of processes and each tag, lengths in order.
    type Messages = BTreeMap<(usize, usize, u32), Vec<u64>>;

    #[test]
    fn each_message_that_is_sent_is_received() {
        for kernel in Kernel::ALL {
            for processes in [16, 64, 128] {
                let program = kernel.program(processes, 1);
                let (mut sent, mut received) = (Messages::new(), Messages::new());
                for (rank, script) in program.scripts.iter().enumerate() {
                    for op in &script.body {
                        match *op {
                            Op::Isend { to, tag, len, .. } => sent.entry((rank, to, tag)).or_default().push(len),
                            Op::Irecv { from, tag, len, .. } => {
                                received.entry((from, rank, tag)).or_default().push(len);
                            }
                            _ => {}
                        }
                    }
                }
                assert_eq!(sent, received, "{} {processes}", kernel.name());
            }
        }
    }
}
