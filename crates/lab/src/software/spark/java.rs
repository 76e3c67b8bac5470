//! The Java that SparkUCX 1.0 and Spark 3.0 run on.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// SparkUCX calls `FileChannelImpl.map0`, a private method that Java 14 changed; Spark 3.0 runs on Java 8 and 11.
const FITS: std::ops::RangeInclusive<u32> = 8..=13;
/// Where Debian's packages install Java.
const INSTALLED: &str = "/usr/lib/jvm";

/// A Java development kit.
#[derive(Clone, Debug)]
pub struct Java {
    pub home: PathBuf,
    pub version: u32,
}

impl Java {
    /// The Java in `home`; without that one that JAVA_HOME names or that a Debian package has installed, if it fits.
    pub fn find(home: Option<&Path>) -> Result<Java> {
        let told = home.map(Path::to_owned);
        let mut candidates: Vec<PathBuf> = told.iter().cloned().collect();
        if told.is_none() {
            candidates.extend(std::env::var_os("JAVA_HOME").map(PathBuf::from));
            let mut installed: Vec<PathBuf> =
                std::fs::read_dir(INSTALLED).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            installed.sort();
            candidates.extend(installed);
        }
        let mut found = vec![];
        for home in candidates {
            // A folder without a compiler is of a package that only runs programs.
            match version(&home.join("bin/javac")) {
                Ok(version) if FITS.contains(&version) => return Ok(Java { home, version }),
                Ok(version) => found.push(format!("{} is Java {version}", home.display())),
                Err(error) if told.is_some() => return Err(error),
                Err(_) => {}
            }
        }
        found.dedup();
        let found = if found.is_empty() { "none was found".to_owned() } else { found.join(", ") };
        bail!(
            "SparkUCX 1.0 needs a development kit of Java 8 to 13, for it calls a private method that Java 14 changed; {found}. \
             Give one with --java HOME. Debian 11 has the package openjdk-11-jdk-headless, which Debian 12 runs too"
        )
    }

    /// A program of it, with JAVA_HOME set.
    pub fn program(&self, name: &str) -> PathBuf {
        self.home.join("bin").join(name)
    }
}

/// The major version that `javac -version` prints: "javac 11.0.24", "javac 1.8.0_412".
fn version(javac: &Path) -> Result<u32> {
    let output = Command::new(javac).arg("-version").output().with_context(|| javac.display().to_string())?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    major(&text).with_context(|| format!("{} -version prints no version: {text}", javac.display()))
}

fn major(text: &str) -> Option<u32> {
    let word = text.lines().find_map(|line| line.strip_prefix("javac "))?;
    let mut numbers = word.split(['.', '_', '-', '+']).map(|part| part.trim().parse::<u32>().ok());
    match numbers.next()?? {
        1 => numbers.next()?,
        version => Some(version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_writing_the_version_is_read() {
        for (text, expected) in [("javac 11.0.24\n", 11), ("javac 1.8.0_412\n", 8), ("javac 17\n", 17)] {
            assert_eq!(major(text), Some(expected));
        }
        assert_eq!(major("no such file"), None);
    }

    #[test]
    fn a_java_that_is_no_java_is_named() {
        let error = format!("{:#}", Java::find(Some(Path::new("/nonexistent"))).unwrap_err());
        assert!(error.contains("/nonexistent/bin/javac"), "{error}");
    }
}
