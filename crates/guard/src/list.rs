//! The list of guards that a user asks for.

use std::fmt;
use std::str::FromStr;

/// Guards that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    pub rnr: bool,
    pub dummy: bool,
    pub reissue: bool,
    pub prefetch: bool,
}

/// A word that names no guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownGuard(String);

impl Guards {
    /// All guards. Each acts only where it sees what it is for.
    pub const AUTO: Guards = Guards { rnr: true, dummy: true, reissue: true, prefetch: true };
    /// Their names in lists.
    pub const NAMES: [&str; 5] = ["rnr", "dummy", "reissue", "prefetch", "auto"];

    /// Whether a guard is on.
    pub fn any(&self) -> bool {
        *self != Guards::default()
    }

    /// Whether a guard is on that needs to know the open requests.
    pub fn watches_requests(&self) -> bool {
        self.dummy || self.reissue
    }
}

/// Names separated by commas.
impl FromStr for Guards {
    type Err = UnknownGuard;

    fn from_str(text: &str) -> Result<Guards, UnknownGuard> {
        let mut guards = Guards::default();
        for name in text.split(',').map(str::trim) {
            match name {
                "rnr" => guards.rnr = true,
                "dummy" => guards.dummy = true,
                "reissue" => guards.reissue = true,
                "prefetch" => guards.prefetch = true,
                "auto" => guards = Guards::AUTO,
                _ => return Err(UnknownGuard(name.to_owned())),
            }
        }
        Ok(guards)
    }
}

/// As [`Guards::from_str`] reads it.
impl fmt::Display for Guards {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Guards::AUTO {
            return to.write_str("auto");
        }
        let on = [self.rnr, self.dummy, self.reissue, self.prefetch];
        let names: Vec<&str> = Guards::NAMES.into_iter().zip(on).filter(|(_, on)| *on).map(|(name, _)| name).collect();
        to.write_str(&names.join(","))
    }
}

impl fmt::Display for UnknownGuard {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "there is no guard `{}`; there are: {}", self.0, Guards::NAMES.join(", "))
    }
}

impl std::error::Error for UnknownGuard {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_back() {
        for text in ["rnr", "dummy,reissue", "rnr,prefetch", "auto"] {
            assert_eq!(text.parse::<Guards>().unwrap().to_string(), text);
        }
        assert_eq!("rnr, dummy,reissue,prefetch".parse(), Ok(Guards::AUTO));
        assert!(!Guards::default().any());
        assert_eq!("".parse::<Guards>(), Err(UnknownGuard(String::new())));
        let error = "rnr,dumy".parse::<Guards>().unwrap_err().to_string();
        assert!(error.contains("`dumy`") && error.contains("reissue"), "{error}");
    }
}
