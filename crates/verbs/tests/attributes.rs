//! Runs `tests/c/attributes.c`: programs see the attributes of the profile, and `ibv_modify_qp` has its limits.

mod system;

#[test]
fn programs_see_the_attributes_of_each_profile() {
    // max_qp_rd_atom, max_qp_init_rd_atom, local_ca_ack_delay; ODP capabilities: general, RC, UC, UD, XRC.
    for (profile, wanted) in [
        ("ideal", ["16", "16", "15", "3", "0xff", "0x27", "0x23", "0xfd"]),
        ("connectx3", ["16", "128", "15", "0", "0", "0", "0", "0"]),
        ("connectx4", ["16", "16", "16", "3", "0x2f", "0", "1", "0"]),
        ("connectx5", ["16", "16", "16", "3", "0x2f", "0", "1", "0x2d"]),
        ("connectx6", ["16", "16", "16", "3", "0x0f", "0", "1", "0"]),
    ] {
        let arguments = [&["1"], &wanted[..]].concat();
        print!("{}", system::check("attributes", &arguments, &[("WEIR_PROFILE", profile)]));
    }
}
