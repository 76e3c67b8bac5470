//! Runs `tests/c/objects.c`: shared queues, XRC domains, resized CQs, failed sends, replies, addresses and limits.

mod system;

#[test]
fn the_objects_program_passes() {
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|addresses| addresses.contains(" lo"));
    for gid in ["1", "0"].into_iter().take(if v6 { 2 } else { 1 }) {
        system::check("objects", &[gid], &[]);
    }
}
