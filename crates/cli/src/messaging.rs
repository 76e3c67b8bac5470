//! MPI launchers under `weir run`: their messages go by libfabric's provider `weir-odp`.
//!
//! libfabric finds the provider by FI_PROVIDER_PATH. Open MPI, MPICH and Intel MPI are told to use it, unless the user has told
//! them something else. A launcher hands its environment to the ranks of its own machine.

use crate::environment::search_path;
use crate::library;
use anyhow::Result;
use std::ffi::OsStr;
use std::path::Path;

/// The provider's file.
const FILE: &str = "libweir-odp-fi.so";
/// Its name.
const NAME: &str = "weir-odp";
/// Names of launchers; also with a suffix, such as `mpirun.openmpi`.
const LAUNCHERS: [&str; 4] = ["mpirun", "mpiexec", "orterun", "prterun"];
/// Words of Open MPI's options: with one of them the user chooses components.
const COMPONENTS: [&str; 8] = ["pml", "mtl", "btl", "osc", "mtl_ofi", "btl_ofi", "opal_common_ofi", "pml_ucx"];
/// Variables with which the user chooses how messages travel.
const CHOSEN: [&str; 11] = [
    "FI_PROVIDER",
    "OMPI_MCA_osc",
    "OMPI_MCA_mtl_ofi_provider_include",
    "OMPI_MCA_btl_ofi_provider_include",
    "OMPI_MCA_opal_common_ofi_provider_include",
    "OMPI_MCA_pml",
    "OMPI_MCA_mtl",
    "OMPI_MCA_btl",
    "MPIR_CVAR_CH4_NETMOD",
    "I_MPI_FABRICS",
    "I_MPI_OFI_PROVIDER",
];

/// What makes libfabric find the provider, and, for a launcher, makes MPI use it (`use_it`).
pub fn variables(
    program: &OsStr,
    words: &[impl AsRef<OsStr>],
    use_it: bool,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(&'static str, String)>> {
    let folder = library::folder()?;
    if !folder.join(FILE).is_file() {
        return Ok(Vec::new());
    }
    let folder = folder.to_string_lossy().into_owned();
    Ok(chosen(&folder, program, words, use_it, environment))
}

fn chosen(
    folder: &str,
    program: &OsStr,
    words: &[impl AsRef<OsStr>],
    use_it: bool,
    environment: impl Fn(&str) -> Option<String>,
) -> Vec<(&'static str, String)> {
    // The path replaces libfabric's own folder of providers, in which another provider may be that the user asks for.
    if environment("FI_PROVIDER").is_some_and(|asked| !asked.to_lowercase().contains(NAME)) {
        return Vec::new();
    }
    // Weir's folder comes first: Intel MPI looks at no other.
    let before = environment("FI_PROVIDER_PATH").unwrap_or_default();
    let mut variables = vec![("FI_PROVIDER_PATH", search_path(folder, &before))];
    let user_chooses = CHOSEN.iter().any(|name| environment(name).is_some()) || choose_components(words);
    // Also behind another command, as in `timeout 60 mpirun`.
    let launches = is_launcher(program) || words.iter().any(|word| is_launcher(word.as_ref()));
    if use_it && launches && !user_chooses {
        let fixed = [
            ("FI_PROVIDER", NAME),
            ("OMPI_MCA_pml", "cm"),
            ("OMPI_MCA_mtl", "ofi"),
            ("OMPI_MCA_btl", "self,ofi"),
            ("OMPI_MCA_osc", "rdma,pt2pt"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            // Ranks of one machine would use shared memory of their own.
            ("MPIR_CVAR_NOLOCAL", "1"),
            ("I_MPI_FABRICS", "ofi"),
        ];
        variables.extend(fixed.map(|(name, value)| (name, value.to_owned())));
    }
    variables
}

fn is_launcher(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    LAUNCHERS.iter().any(|launcher| name == *launcher || name.starts_with(&format!("{launcher}.")))
}

/// Whether the launcher's words choose components of Open MPI (`--mca pml ucx`), or set a variable that chooses.
fn choose_components(words: &[impl AsRef<OsStr>]) -> bool {
    let chooses = |word: &str| COMPONENTS.contains(&word) || word.contains("provider_include");
    words.windows(2).any(|pair| {
        let (option, value) = (pair[0].as_ref().to_string_lossy(), pair[1].as_ref().to_string_lossy());
        match &*option {
            "--mca" | "-mca" | "--gmca" | "-gmca" => chooses(&value),
            // Variables for the ranks, of Open MPI (`-x NAME=VALUE`) and of Hydra (`-genv NAME VALUE`).
            "-x" => value.split_once('=').is_some_and(|(name, _)| CHOSEN.contains(&name)),
            "-genv" | "-env" => CHOSEN.contains(&&*value),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(program: &str, words: &[&str], environment: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let get = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        chosen("/w", OsStr::new(program), words, true, get)
    }

    #[test]
    fn a_launcher_uses_the_provider() {
        let of = names("/usr/bin/mpirun.openmpi", &["-n", "2", "prog"], &[("FI_PROVIDER_PATH", "/a:/w")]);
        assert_eq!(of[0], ("FI_PROVIDER_PATH", "/w:/a".to_owned()));
        assert!(
            of.contains(&("FI_PROVIDER", "weir-odp".to_owned())) && of.contains(&("OMPI_MCA_mtl", "ofi".to_owned()))
        );
        assert_eq!(names("ib_write_bw", &[], &[]), [("FI_PROVIDER_PATH", "/w".to_owned())]);
        assert_eq!(names("mpirunner", &[], &[]).len(), 1);
        assert!(names("timeout", &["60", "mpirun", "-n", "2", "prog"], &[]).len() > 1);
    }

    #[test]
    fn what_the_user_chooses_stays() {
        let words = ["-n", "2", "--mca", "pml", "ucx", "prog"];
        assert_eq!(names("mpirun", &words, &[]).len(), 1);
        assert_eq!(names("mpirun", &["--mca", "mtl_ofi_provider_include", "verbs"], &[]).len(), 1);
        assert_eq!(names("mpirun", &[], &[("OMPI_MCA_pml", "ob1")]).len(), 1);
        assert_eq!(names("mpirun", &["-x", "FI_PROVIDER=tcp", "prog"], &[]).len(), 1);
        assert_eq!(names("mpiexec", &["-genv", "FI_PROVIDER", "tcp", "prog"], &[]).len(), 1);
        assert!(names("mpirun", &["-x", "PATH", "prog"], &[]).len() > 1);
        assert!(names("mpirun", &[], &[("FI_PROVIDER", "tcp")]).is_empty());
        assert!(names("mpirun", &["--mca", "orte_base_help_aggregate", "0"], &[]).len() > 1);
    }
}
