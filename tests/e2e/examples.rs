//! The C example of examples/c: its message arrives, with lost packets too. `make test-examples` builds and runs the
//! Rust example, which needs a network.

use crate::bed::{Bed, FAULTS, Topology};
use crate::trial;
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_stage::{Side, pair};

/// The example's own TCP port.
const PORT: u16 = 18700;

pub fn trials() -> Vec<Trial> {
    // In namespaces, because the port is fixed.
    vec![trial(Topology::Veth, "the C example sends a message and checks it, with faults too", example)]
}

fn example(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c");
    for file in ["message.c", "Makefile"] {
        std::fs::copy(source.join(file), folder.path().join(file))?;
    }
    let mut make = Command::new("make");
    let made = make.arg("-C").arg(folder.path()).arg("CFLAGS=-O2 -Wall -Wextra -Werror").output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let program = folder.path().join("message");
    for options in [&[][..], &["--faults", FAULTS]] {
        let mut client = bed.weir(Side::B, options, [&program]);
        client.arg(bed.stage.address(Side::A).to_string());
        let mut server = bed.weir(Side::A, options, [&program]);
        let outcome = pair::run(&mut server, &mut client, PORT, Duration::from_secs(60))?.success()?;
        let (server, client) = (outcome.server.stdout, outcome.client.stdout);
        ensure!(server.contains("received 1048576 bytes") && client.contains("the same checksum"), "{server}{client}");
    }
    Ok(())
}
