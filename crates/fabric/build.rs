//! Link options of the library.

fn main() {
    // Closing the library while a thread of it runs would end the process.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
