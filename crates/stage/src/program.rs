//! Programs that Weir runs but does not include.

use anyhow::{Result, bail};
use std::path::PathBuf;

/// Program, or a prefix that ends with an underscore → Debian package.
const PACKAGES: &[(&str, &str)] = &[
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("iperf3", "iperf3"),
    ("ucx_perftest", "ucx-utils"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ib_", "perftest"),
    ("cmtime", "rdmacm-utils"),
    ("fi_", "libfabric-bin"),
    ("cmake", "cmake"),
    ("mvn", "maven"),
    ("ucx_info", "ucx-utils"),
    ("mpirun.openmpi", "openmpi-bin"),
    ("mpicc.openmpi", "libopenmpi-dev"),
    ("mpirun.mpich", "mpich"),
    ("mpicc.mpich", "libmpich-dev"),
    ("mpicxx.mpich", "libmpich-dev"),
    ("lmp", "lammps"),
    ("NPopenmpi", "netpipe-openmpi"),
    ("cc", "gcc"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("taskset", "util-linux"),
];

/// Finds a program in PATH; the error names its package.
pub fn locate(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An ordinary user's PATH often lacks these folders, and `ip` is in one of them.
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    match std::env::split_paths(&path).chain(extra).map(|dir| dir.join(program)).find(|p| p.is_file()) {
        Some(found) => Ok(found),
        None => bail!("{program} is not installed: apt install {}", package(program)),
    }
}

/// The Debian packages of those of `programs` that are not installed.
pub fn missing<'a>(programs: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut packages: Vec<&str> = programs.into_iter().filter(|p| locate(p).is_err()).map(package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn package(program: &str) -> &str {
    let matches = |name: &str| program == name || (name.ends_with('_') && program.starts_with(name));
    PACKAGES.iter().find(|(name, _)| matches(name)).map_or(program, |(_, package)| package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        assert_eq!(package("ib_write_lat"), "perftest");
        assert_eq!(package("ip"), "iproute2");
        assert_eq!(package("tc"), "iproute2");
        assert_eq!(package("iperf3"), "iperf3");
        assert_eq!(package("fi_pingpong"), "libfabric-bin");
        assert!(locate("no-such-program-of-ours").unwrap_err().to_string().contains("apt install"));
        assert!(locate("sh").is_ok());
    }
}
