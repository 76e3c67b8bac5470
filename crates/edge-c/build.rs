//! Gives the C library its name.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir-edge.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
