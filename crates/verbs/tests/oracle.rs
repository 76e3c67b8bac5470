//! Runs `tests/c/oracle.c`: random sequences of verbs of RC, UC and UD, with and without an SRQ, against a model.
//! `ORACLE_SEQUENCES` is their number, `ORACLE_SEED` the seed of the first.

mod system;

use std::process::Command;
use std::time::SystemTime;

/// A few seconds.
const SEQUENCES: &str = "500";

#[test]
fn random_sequences_do_what_the_model_says() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let seed = std::env::var("ORACLE_SEED").unwrap_or_else(|_| now.to_string());
    let sequences = std::env::var("ORACLE_SEQUENCES").unwrap_or_else(|_| SEQUENCES.into());
    println!("ORACLE_SEED={seed} ORACLE_SEQUENCES={sequences}");
    let program = system::compile("oracle.c", "oracle", &["-libverbs", "-pthread"]);
    let mut command = Command::new(&program);
    command.args(["weir_lo", &seed, &sequences]).env("LD_LIBRARY_PATH", system::linked()).env("WEIR_INTERFACE", "lo");
    assert!(system::passed(&system::run(&mut command)));
}
