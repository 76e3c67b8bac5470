//! Link options of the C library: its name, and that it stays.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir-edge.so.0");
    // Its threads and its handlers of SIGSEGV and SIGBUS live as long as the process, also after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
