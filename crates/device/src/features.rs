//! Optional kernel features of a device, as users see them: which are in use here, and why others are not.

use crate::config::{Config, Userfaultfd};
use crate::memory::populate;
use crate::userfault;
use std::io;
use weir_link::{DisabledFeatures, Udp};

/// A feature of the kernel that has a fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The name that `WEIR_WITHOUT` takes.
    pub name: &'static str,
    /// Why it is not used; `None` if it is.
    pub unused: Option<String>,
    /// What happens without it.
    pub fallback: &'static str,
}

/// The features for programs that start with this environment. The error names an invalid `WEIR_*` variable and the
/// values that it takes.
pub fn features() -> Result<Vec<Feature>, String> {
    let config = Config::from_env()?;
    let (disabled, no_userfaultfd) = (config.disabled, config.userfaultfd == Userfaultfd::Off);
    let feature = |(name, feature): (&'static str, DisabledFeatures)| {
        let unused = if disabled.contains(feature) {
            Some("WEIR_WITHOUT".to_owned())
        } else if feature == DisabledFeatures::USERFAULTFD && no_userfaultfd {
            Some("WEIR_USERFAULTFD".to_owned())
        } else if feature == DisabledFeatures::UDP_SEGMENT && disabled.contains(DisabledFeatures::UDP_GRO) {
            Some("udp-gro is switched off: the peer might get segments uncut".to_owned())
        } else {
            refusal(feature).map(|error| error.to_string())
        };
        Feature { name, unused, fallback: fallback(feature) }
    };
    Ok(DisabledFeatures::each().map(feature).collect())
}

/// Why the kernel does not offer a feature.
fn refusal(feature: DisabledFeatures) -> Option<io::Error> {
    match feature {
        DisabledFeatures::USERFAULTFD => {
            userfault::available().err().map(|error| io::Error::from_raw_os_error(error.0))
        }
        DisabledFeatures::MADV_POPULATE if populate::is_available() => None,
        DisabledFeatures::MADV_POPULATE => Some(io::Error::from_raw_os_error(libc::EINVAL)),
        DisabledFeatures::UDP_SEGMENT => Udp::refusal(feature).or_else(|| Udp::refusal(DisabledFeatures::UDP_GRO)),
        _ => Udp::refusal(feature),
    }
}

fn fallback(feature: DisabledFeatures) -> &'static str {
    match feature {
        DisabledFeatures::UDP_SEGMENT => "each packet is sent by itself",
        DisabledFeatures::UDP_GRO => "each packet is received and sent by itself",
        DisabledFeatures::IPV6 => "only IPv4",
        DisabledFeatures::UDP_CONNECT => "the kernel looks for a route at each send",
        DisabledFeatures::USERFAULTFD => "free() and raw system calls on ODP memory are not seen",
        _ => "pages are touched one by one",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_has_no_feature_and_each_has_a_reason() {
        let found = std::thread::spawn(|| {
            weir_stage::old_kernel::install(false).unwrap();
            features()
        });
        for feature in found.join().unwrap().unwrap() {
            // The filter can refuse userfaultfd(2), but it cannot hide that the kernel has it. Every kernel that Weir runs
            // on can connect sockets.
            if !["userfaultfd", "udp-connect"].contains(&feature.name) {
                assert!(feature.unused.is_some(), "{feature:?}");
            }
            assert!(!feature.fallback.is_empty());
        }
    }
}
