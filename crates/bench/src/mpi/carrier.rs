//! What carries the messages of a library of MPI, and how the library is told.

use std::path::PathBuf;
use weir_stage::{Stage, locate};

/// A library of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    OpenMpi,
    Mpich,
}

/// What carries its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// UCX, with RC on Weir's device.
    WeirUcx,
    /// libfabric, with the provider `weir-odp` on Weir's device.
    WeirOdp,
    /// Open MPI's own TCP.
    OwnTcp,
    /// UCX over TCP.
    UcxTcp,
    /// libfabric's provider `tcp`.
    FabricTcp,
    /// Memory that the processes share, by Open MPI itself.
    SharedMemory,
}

/// A build of a library: launcher and compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    /// Debian's Open MPI, which has UCX and libfabric.
    OpenMpi,
    /// Debian's MPICH, which has UCX.
    MpichUcx,
    /// An MPICH with libfabric, such as PyPI's.
    MpichFabric,
}

/// The folder of an MPICH with libfabric.
const MPICH: &str = "WEIR_MPICH";

impl Library {
    /// Its name as shown.
    pub fn name(self) -> &'static str {
        match self {
            Library::OpenMpi => "Open MPI",
            Library::Mpich => "MPICH",
        }
    }

    /// The build that has this carrier.
    pub fn build(self, carrier: Carrier) -> Build {
        match (self, carrier) {
            (Library::OpenMpi, _) => Build::OpenMpi,
            (Library::Mpich, Carrier::WeirOdp | Carrier::FabricTcp) => Build::MpichFabric,
            (Library::Mpich, _) => Build::MpichUcx,
        }
    }
}

impl Carrier {
    /// Its short name.
    pub fn name(self) -> &'static str {
        match self {
            Carrier::WeirUcx => "weir",
            Carrier::WeirOdp => "weir-odp",
            Carrier::OwnTcp => "tcp",
            Carrier::UcxTcp => "UCX tcp",
            Carrier::FabricTcp => "libfabric tcp",
            Carrier::SharedMemory => "shm",
        }
    }

    /// Whether the ranks use Weir.
    pub fn is_weir(self) -> bool {
        matches!(self, Carrier::WeirUcx | Carrier::WeirOdp)
    }

    /// Components of Open MPI, so that nothing else carries the messages.
    pub fn components(self, stage: &Stage) -> Vec<(&'static str, &'static str)> {
        match self {
            Carrier::WeirUcx | Carrier::UcxTcp => vec![
                ("pml", "ucx"),
                ("osc", "ucx"),
                ("btl", "self"),
                // Open MPI leaves TCP to others otherwise.
                ("pml_ucx_tls", "any"),
                ("pml_ucx_devices", "any"),
            ],
            // `weir run` chooses.
            Carrier::WeirOdp => vec![],
            Carrier::OwnTcp => vec![("pml", "ob1"), ("btl", "tcp,self"), ("btl_tcp_if_include", stage.interface())],
            // The provider has no atomics, which windows by `btl ofi` need.
            Carrier::FabricTcp => vec![
                ("pml", "cm"),
                ("mtl", "ofi"),
                ("btl", "self"),
                ("osc", "pt2pt"),
                // Its default leaves out TCP.
                ("mtl_ofi_provider_exclude", "none"),
            ],
            Carrier::SharedMemory => vec![("pml", "ob1"), ("btl", "vader,self")],
        }
    }

    /// Variables for UCX, libfabric and MPICH.
    pub fn variables(self, stage: &Stage) -> Vec<(&'static str, String)> {
        let quiet = ("UCX_LOG_LEVEL", "error".to_owned());
        match self {
            Carrier::WeirUcx => {
                vec![quiet, ("UCX_TLS", "rc,self".into()), ("UCX_NET_DEVICES", format!("{}:1", stage.device()))]
            }
            Carrier::UcxTcp => vec![
                quiet,
                ("UCX_TLS", "tcp,self".into()),
                ("UCX_NET_DEVICES", stage.interface().into()),
                ("MPIR_CVAR_NOLOCAL", "1".into()),
            ],
            Carrier::FabricTcp => vec![
                ("FI_PROVIDER", "tcp".into()),
                ("FI_TCP_IFACE", stage.interface().into()),
                ("MPIR_CVAR_CH4_NETMOD", "ofi".into()),
                ("MPIR_CVAR_NOLOCAL", "1".into()),
            ],
            Carrier::WeirOdp | Carrier::OwnTcp | Carrier::SharedMemory => vec![],
        }
    }
}

impl Build {
    /// Its launcher, or why it cannot be had.
    pub fn launcher(self) -> Result<PathBuf, String> {
        self.find("mpirun.openmpi", "mpirun.mpich", "mpiexec")
    }

    /// Its compiler, or why it cannot be had.
    pub fn compiler(self) -> Result<PathBuf, String> {
        self.find("mpicc.openmpi", "mpicc.mpich", "mpicc")
    }

    fn find(self, open_mpi: &str, mpich: &str, other: &str) -> Result<PathBuf, String> {
        let debian = |program| locate(program).map_err(|error| format!("{error:#}"));
        match self {
            Build::OpenMpi => debian(open_mpi),
            Build::MpichUcx => debian(mpich),
            Build::MpichFabric => {
                let how = format!(
                    "{MPICH} names no folder of an MPICH with libfabric: python3 -m venv DIR; DIR/bin/pip install \
                     mpich==4.3.2; {MPICH}=DIR"
                );
                let folder = std::env::var_os(MPICH).ok_or_else(|| how.clone())?;
                let program = PathBuf::from(folder).join("bin").join(other);
                if program.is_file() { Ok(program) } else { Err(how) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_carrier_has_a_build() {
        assert_eq!(Library::OpenMpi.build(Carrier::WeirOdp), Build::OpenMpi);
        assert_eq!(Library::Mpich.build(Carrier::WeirOdp), Build::MpichFabric);
        assert_eq!(Library::Mpich.build(Carrier::UcxTcp), Build::MpichUcx);
    }
}
