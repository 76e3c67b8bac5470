//! Runs `tests/c/twice.c`: objects are destroyed twice, in any order, after their device, and by two threads at once.

mod system;

use std::time::SystemTime;

#[test]
fn each_object_is_destroyed_once() {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    println!("seed {seed}");
    system::check("twice", &[&seed.to_string(), "400"], &[]);
}
