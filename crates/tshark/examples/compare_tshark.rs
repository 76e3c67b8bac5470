//! Compares Weir's parsing of capture files with tshark's: `compare_tshark FILE…`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    for path in std::env::args_os().skip(1) {
        match weir_tshark::compare(&path) {
            Ok(comparison) => {
                passed += comparison.passed;
                skipped += comparison.skipped;
                failed += comparison.failures.len();
                for failure in comparison.failures {
                    eprintln!("{}: {failure}", path.display());
                }
            }
            Err(error) => {
                failed += 1;
                eprintln!("{}: {error}", path.display());
            }
        }
    }
    if skipped > 0 {
        eprintln!("{skipped} skipped: their ICRC is wrong");
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
