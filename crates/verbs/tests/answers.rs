//! `tests/c/answers.c`: what calls answer to masks and sizes of other releases, and to what there is not.

mod system;

#[test]
fn calls_answer_as_rdma_core_does() {
    system::check("answers", &[], &[]);
}
