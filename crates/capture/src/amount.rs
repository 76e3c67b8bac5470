//! How much a recorder keeps: of each frame, and of the frames before a stall. Both are options of users.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// How much of each frame is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snap {
    /// All of it.
    #[default]
    Whole,
    /// Its headers, from Ethernet to the last header of RoCE, and no payload of the program.
    Headers,
    /// So many bytes at most, at least [`Snap::LEAST`].
    Bytes(u32),
}

/// The value of an option that says how much to keep, and why it cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct AmountError(String);

/// So many bytes of packets are kept in memory, from [`HistorySize::LEAST`] to [`HistorySize::MOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistorySize(u64);

impl Snap {
    /// All headers fit: Ethernet, IPv6, UDP, BTH, XRCETH and AtomicETH.
    pub const LEAST: u32 = 14 + 40 + 8 + weir_wire::MAX_HEADERS as u32;
    /// The most bytes of a frame with [`Snap::Headers`]: management datagrams are kept whole.
    pub const MOST_HEADERS: u32 = 512;

    /// The snap length that the file states; 0 for no limit.
    pub fn in_file(self) -> u32 {
        match self {
            Snap::Whole => 0,
            Snap::Headers => Self::MOST_HEADERS,
            Snap::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for Snap {
    type Err = AmountError;

    /// `headers`, or a number of bytes.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        if text == "headers" {
            return Ok(Snap::Headers);
        }
        match text.parse() {
            Ok(bytes) if bytes >= Self::LEAST => Ok(Snap::Bytes(bytes)),
            Ok(_) => Err(AmountError(format!(
                "{text} bytes cut off headers of some packets; give `headers`, or {} at least",
                Self::LEAST
            ))),
            Err(_) => Err(AmountError(format!("`{text}` is neither `headers` nor a number of bytes, such as 128"))),
        }
    }
}

impl fmt::Display for Snap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Snap::Whole => f.write_str("whole"),
            Snap::Headers => f.write_str("headers"),
            Snap::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl HistorySize {
    /// The longest frame fits, with what is around it in the file.
    pub const LEAST: u64 = 128 << 10;
    /// The most.
    pub const MOST: u64 = 16 << 30;

    /// Bytes.
    pub fn bytes(self) -> usize {
        self.0 as usize
    }

    /// Bytes of the ring, with room for frames that come while the thread begins to write. A multiple of four, as blocks
    /// are: the words of a block's header are never split.
    pub(crate) fn ring(self) -> usize {
        let keep = self.bytes();
        (keep + (keep / 2).clamp(1 << 20, 8 << 20)).next_multiple_of(4)
    }

    /// Whether that much memory can be had now.
    pub fn check_memory(self) -> Result<(), AmountError> {
        self.fits(available_memory())
    }

    fn fits(self, available: Option<u64>) -> Result<(), AmountError> {
        let total = self.ring();
        if let Some(available) = available.filter(|available| total as u64 > available / 4 * 3) {
            let mib = available >> 20;
            let why = format!("{self} of packets is more than three quarters of the {mib} MiB of memory that are free");
            return Err(AmountError(format!("{why}; give a smaller size")));
        }
        Vec::<u8>::new()
            .try_reserve_exact(total)
            .map_err(|_| AmountError(format!("there is no memory for {self} of packets; give a smaller size")))
    }
}

impl FromStr for HistorySize {
    type Err = AmountError;

    /// A number of bytes, also with K, M or G for powers of 1024.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let (number, shift) = match text.char_indices().last() {
            Some((at, 'k' | 'K')) => (&text[..at], 10),
            Some((at, 'm' | 'M')) => (&text[..at], 20),
            Some((at, 'g' | 'G')) => (&text[..at], 30),
            _ => (text, 0),
        };
        let number: u64 =
            number.parse().map_err(|_| AmountError(format!("`{text}` is no size; give one such as 64M")))?;
        let bytes = number.saturating_mul(1 << shift);
        if bytes < Self::LEAST {
            return Err(AmountError(format!("{text} holds too few packets; give 128K at least, such as 64M")));
        }
        if bytes > Self::MOST {
            return Err(AmountError(format!("{text} is more than is supported; give 16G at most, such as 64M")));
        }
        Ok(HistorySize(bytes))
    }
}

impl fmt::Display for HistorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes % (1 << 30) == 0 => write!(f, "{}G", bytes >> 30),
            bytes if bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
            bytes if bytes % (1 << 10) == 0 => write!(f, "{}K", bytes >> 10),
            bytes => write!(f, "{bytes}"),
        }
    }
}

/// Memory that this process can still get, bytes: that of the machine, or less if its control group has a limit. `None`:
/// the kernel does not say.
fn available_memory() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    [machine_memory(), group_memory(&groups, Path::new("/sys/fs/cgroup"))].into_iter().flatten().min()
}

fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// What is left of the limit of a control group. `groups`: the lines of `/proc/self/cgroup`. A container may see its own
/// group at the root of `mounted`.
fn group_memory(groups: &str, mounted: &Path) -> Option<u64> {
    let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let left = |folder: PathBuf, limit: &str, used: &str| {
        Some(number(folder.join(limit))?.saturating_sub(number(folder.join(used))?))
    };
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let (root, limit, used) = match controllers {
            "" => (mounted.to_owned(), "memory.max", "memory.current"),
            "memory" => (mounted.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
            _ => return None,
        };
        left(root.join(path), limit, used).or_else(|| left(root, limit, used))
    };
    groups.lines().filter_map(of_line).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_multiple_of_four_long() {
        for size in ["128K", "131073", "2500004", "3500001", "5000001", "10000004", "16777217", "64M"] {
            let size: HistorySize = size.parse().unwrap();
            assert!(size.ring().is_multiple_of(4) && size.ring() > size.bytes(), "{size}");
        }
    }

    #[test]
    fn the_limit_of_a_control_group_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(group_memory("0::/a/b\n", folder.path()), None);
        write("memory.max", "max\n");
        write("a/b/memory.max", "5000\n");
        write("a/b/memory.current", "4200\n");
        assert_eq!(group_memory("0::/a/b\n", folder.path()), Some(800));
        assert_eq!(group_memory("0::/\n", folder.path()), None, "no limit");
        write("memory/memory.limit_in_bytes", "900\n");
        write("memory/memory.usage_in_bytes", "1000\n");
        assert_eq!(group_memory("3:cpu:/x\n5:memory:/not/there\n", folder.path()), Some(0));
    }

    #[test]
    fn a_size_that_memory_has_no_room_for_is_refused() {
        let size: HistorySize = "64M".parse().unwrap();
        assert_eq!(size.fits(Some(96 << 20)), Ok(()));
        assert_eq!(size.fits(None), Ok(()));
        let error = size.fits(Some(95 << 20)).unwrap_err().to_string();
        assert!(error.contains("64M") && error.contains("95 MiB"), "{error}");
        let error = HistorySize(isize::MAX as u64 - (16 << 20)).fits(None).unwrap_err().to_string();
        assert!(error.contains("no memory for"), "{error}");
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn snap_lengths_cut_off_no_header() {
        assert_eq!("headers".parse(), Ok(Snap::Headers));
        assert_eq!("106".parse(), Ok(Snap::Bytes(106)));
        assert_eq!("9000".parse(), Ok(Snap::Bytes(9000)));
        for (text, expected) in [("105", "106 at least"), ("0", "106 at least"), ("", "neither"), ("-1", "neither")] {
            let error = text.parse::<Snap>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn sizes_have_units_and_bounds() {
        for (text, bytes) in [("128K", 128 << 10), ("64M", 64 << 20), ("64m", 64 << 20), ("16G", 16 << 30)] {
            let size: HistorySize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string()), (bytes, text.to_uppercase()));
        }
        assert_eq!("131073".parse::<HistorySize>().unwrap().to_string(), "131073");
        for (text, expected) in [
            ("127K", "128K at least"),
            ("1", "128K at least"),
            ("17G", "16G at most"),
            ("99999999999999999G", "16G at most"),
            ("99999999999999999999", "no size"),
            ("64MB", "no size"),
            ("M", "no size"),
            ("", "no size"),
            ("é", "no size"),
        ] {
            let error = text.parse::<HistorySize>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
