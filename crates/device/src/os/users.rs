//! Which user is at the other end of a socket.

use std::fs;

/// The overflow UID, which the kernel shows for users without a UID in this user namespace. Several users may share it.
pub const OVERFLOW_UID: u32 = 65534;

/// Whether a UID that the kernel shows is this process's user. In a user namespace that does not have all users, the overflow
/// UID says nothing.
pub fn is_own(user: u32) -> bool {
    let is_ambiguous = || !has_all_users(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default());
    user == nix::unistd::geteuid().as_raw() && (user != OVERFLOW_UID || !is_ambiguous())
}

/// Whether each user of the system has a UID in a namespace with this map (user_namespaces(7)).
fn has_all_users(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    // The number 2³² - 1 is no UID.
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_map_has_all_users() {
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(has_all_users("0 0 65534\n65534 65534 4294901761\n"));
        assert!(!has_all_users("1000 0 1\n") && !has_all_users("0 100000 65536\n") && !has_all_users(""));
        assert!(is_own(nix::unistd::geteuid().as_raw()) || nix::unistd::geteuid().as_raw() == OVERFLOW_UID);
        assert!(!is_own(nix::unistd::geteuid().as_raw() ^ 1));
    }
}
