//! Versions of the interface.

/// Major version of the interface that this crate describes.
pub const FI_MAJOR_VERSION: u32 = 1;
/// Minor version of the interface that this crate describes.
pub const FI_MINOR_VERSION: u32 = 17;
/// Revision of the interface that this crate describes; it is in no version number that calls pass.
pub const FI_REVISION_VERSION: u32 = 0;

/// Longest path, in bytes with its NUL.
pub const FI_PATH_MAX: usize = 256;
/// Longest name, in bytes with its NUL.
pub const FI_NAME_MAX: usize = 64;
/// Longest text of a version, in bytes with its NUL.
pub const FI_VERSION_MAX: usize = 64;

/// The number that calls pass for a version.
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The major version in such a number.
pub const fn FI_MAJOR(version: u32) -> u32 {
    version >> 16
}

/// The minor version in such a number.
pub const fn FI_MINOR(version: u32) -> u32 {
    version & 0xffff
}

/// Whether the first version is the second one or a later one.
pub const fn FI_VERSION_GE(v1: u32, v2: u32) -> bool {
    v1 >= v2
}

/// Whether the first version is before the second one.
pub const fn FI_VERSION_LT(v1: u32, v2: u32) -> bool {
    v1 < v2
}
