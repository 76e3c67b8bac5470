//! Which interfaces are used as one: `eth1,eth2=4`, or `auto`.

use std::fmt;
use std::str::FromStr;
use weir_transport::edge::MAX_LINKS;

/// The interfaces that are used as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinksSpec {
    /// All that lead to the peer.
    Auto,
    /// These, 1 to [`MAX_LINKS`].
    Named(Vec<Named>),
}

/// An interface that is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    pub interface: String,
    /// How fast it is compared with others, 1: about 1 Gbit/s. `None`: as the kernel says.
    pub weight: Option<u32>,
}

/// What is wrong with a list of interfaces.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinksSpecError {
    #[error("no interface is named: give some, as in `eth1,eth2=4`, or `auto`")]
    Empty,
    #[error("`{0}` is named twice")]
    Twice(String),
    #[error("the weight `{0}` is not a number from 1 to 1000")]
    Weight(String),
    #[error("{0} interfaces are more than {MAX_LINKS}")]
    TooMany(usize),
}

impl FromStr for LinksSpec {
    type Err = LinksSpecError;

    fn from_str(text: &str) -> Result<LinksSpec, LinksSpecError> {
        if text.trim() == "auto" {
            return Ok(LinksSpec::Auto);
        }
        let mut named: Vec<Named> = vec![];
        for part in text.split(',') {
            let (interface, weight) = match part.split_once('=') {
                None => (part.trim(), None),
                Some((interface, weight)) => {
                    let number = weight.trim().parse().ok().filter(|weight| (1..=1000).contains(weight));
                    (interface.trim(), Some(number.ok_or_else(|| LinksSpecError::Weight(weight.trim().into()))?))
                }
            };
            if interface.is_empty() {
                return Err(LinksSpecError::Empty);
            }
            if named.iter().any(|named| named.interface == interface) {
                return Err(LinksSpecError::Twice(interface.into()));
            }
            named.push(Named { interface: interface.into(), weight });
        }
        if named.len() > MAX_LINKS {
            return Err(LinksSpecError::TooMany(named.len()));
        }
        Ok(LinksSpec::Named(named))
    }
}

impl fmt::Display for LinksSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinksSpec::Named(named) = self else { return f.write_str("auto") };
        for (n, Named { interface, weight }) in named.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{interface}")?;
            if let Some(weight) = weight {
                write!(f, "={weight}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        let named = |interface: &str, weight| Named { interface: interface.into(), weight };
        let spec = LinksSpec::Named(vec![named("eth1", None), named("eth2", Some(4))]);
        assert_eq!("eth1, eth2 = 4".parse(), Ok(spec.clone()));
        assert_eq!(spec.to_string(), "eth1,eth2=4");
        assert_eq!(("auto".parse(), LinksSpec::Auto.to_string()), (Ok(LinksSpec::Auto), "auto".to_string()));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let error = |text: &str| text.parse::<LinksSpec>().unwrap_err().to_string();
        assert_eq!(error(""), "no interface is named: give some, as in `eth1,eth2=4`, or `auto`");
        assert_eq!(error("eth1,"), error(""));
        assert_eq!(error("a,b,a=2"), "`a` is named twice");
        for weight in ["0", "1001", "x", ""] {
            assert_eq!(error(&format!("a={weight}")), format!("the weight `{weight}` is not a number from 1 to 1000"));
        }
        let many: Vec<String> = (0..65).map(|n| format!("eth{n}")).collect();
        assert_eq!(error(&many.join(",")), "65 interfaces are more than 64");
    }
}
