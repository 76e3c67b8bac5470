//! Runs `tests/c/answers.c`: how calls react to masks and sizes of other releases, and to objects that do not exist.

mod system;

#[test]
fn calls_react_as_in_rdma_core() {
    system::check("answers", &[], &[]);
}
