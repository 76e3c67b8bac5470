//! READs and WRITEs of memory of peers.

use weir_msg::testing::{Program, Receive, Remotes, Send, Setup, Window, byte_of};
use weir_msg::{Failure, Scheme, Settings};

fn setups() -> impl Iterator<Item = Setup> {
    let of = |scheme| Settings { scheme, ..Settings::default() };
    let settings = Scheme::ALL.into_iter().map(move |scheme| Setup { settings: of(scheme), ..Setup::default() });
    settings.chain([Setup::tiny()]).map(|setup| Setup { memory: 8 << 20, ..setup })
}

fn each_size(setup: &Setup, to: usize, register_fails: u64) {
    let mut program = Program::new(setup.mesh());
    let mut remotes = Remotes::default();
    let mut window = Window::new(&mut program, to, 4 << 20);
    program.mesh.nodes[0].port.register_fails = register_fails;
    let Settings { rma_bounce, slot, .. } = setup.settings;
    let around = |limit: u64| limit.saturating_sub(1)..=limit + 1;
    let limits = [0, setup.inline as u64, slot.into(), rma_bounce.into(), 3 * u64::from(slot), 50_000];
    for (at, len) in limits.into_iter().flat_map(around).enumerate() {
        for write in [true, false] {
            for immediate in [None, Some(at as u32)] {
                let addr = window.take(len).expect("room in the window");
                let far = (to, addr, window.key);
                remotes.start_as(&mut program, 0, write, far, len, 1 + at % 4, immediate.filter(|_| write));
            }
        }
        if at % 3 == 0 {
            program.mesh.settle();
            remotes.take_events(&mut program);
        }
    }
    program.mesh.settle();
    remotes.take_events(&mut program);
    remotes.check();
    program.finish();
}

#[test]
fn each_size_is_read_and_written() {
    setups().for_each(|setup| each_size(&setup, 1, 0));
}

#[test]
fn an_endpoint_reads_and_writes_its_own_memory() {
    setups().for_each(|setup| each_size(&setup, 0, 0));
}

#[test]
fn memory_that_cannot_be_registered_goes_through_bounce_buffers() {
    setups().for_each(|setup| each_size(&setup, 1, 1));
    setups().for_each(|setup| each_size(&setup, 1, 2));
}

#[test]
fn injected_writes_are_copied_at_once() {
    for setup in setups() {
        let mut program = Program::new(setup.mesh());
        let mut remotes = Remotes::default();
        let mut window = Window::new(&mut program, 1, 1 << 20);
        let longest = program.mesh.nodes[0].endpoint().longest_injected() as u64;
        let to = program.peer(0, 1);
        let mut written = Vec::new();
        while written.len() < 40 {
            let number = written.len() as u64;
            let len = [0, 1, 100, longest][number as usize % 4];
            let addr = window.take(len).expect("room in the window");
            let mut bytes: Vec<u8> = (0..len).map(|at| byte_of(number, at)).collect();
            let immediate = number.is_multiple_of(2).then_some(number as u32);
            loop {
                let key = window.key;
                let result = program.mesh.with(0, |endpoint, port, now| {
                    endpoint.inject_write(port, now, to, &bytes, (addr, key), immediate)
                });
                if result.is_ok() {
                    break;
                }
                program.mesh.turn();
            }
            bytes.fill(0);
            written.push((addr, len));
        }
        program.mesh.settle();
        remotes.take_events(&mut program);
        for (number, (addr, len)) in written.into_iter().enumerate() {
            let bytes = program.mesh.nodes[1].port.memory.bytes(addr, len as usize);
            assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == byte_of(number as u64, at as u64)));
        }
        assert_eq!(remotes.immediates.len(), 20);
        program.finish();
    }
}

/// The operation with the wrong key is denied. Others that were posted end with the connection, or have succeeded before.
#[test]
fn a_wrong_key_is_denied_and_ends_the_connection() {
    for setup in setups() {
        for (write, len, pieces, wrong) in
            [(true, 10, 1, 0), (false, 10, 1, 0), (true, 30_000, 3, 0), (false, 30_000, 2, 1), (true, 700, 1, 2)]
        {
            let mut program = Program::new(setup.mesh());
            let mut remotes = Remotes::default();
            let mut window = Window::new(&mut program, 1, 1 << 20);
            // A key that there is not, an address below the region, and one beyond its end.
            let far = [
                (1, window.addr, window.key + 77),
                (1, window.addr - 1, window.key),
                (1, window.addr + window.len - 20, window.key),
            ];
            let mut right = |program: &mut Program, remotes: &mut Remotes, write| {
                let addr = window.take(5000).expect("room in the window");
                remotes.start(program, 0, write, (window, addr), 5000)
            };
            let before = [right(&mut program, &mut remotes, true), right(&mut program, &mut remotes, false)];
            let denied = remotes.start_as(&mut program, 0, write, far[wrong], len, pieces, None);
            let after = right(&mut program, &mut remotes, true);
            program.may_fail = vec![0, 1];
            program.mesh.settle();
            remotes.take_events(&mut program);
            assert!(before.iter().all(|&number| remotes.result(number) == Some(Ok(()))));
            assert_eq!(remotes.result(denied), Some(Err(Failure::Denied)), "{len} bytes");
            // With a short queue, an operation that has not left goes with the connection, too.
            assert_eq!(remotes.result(after), Some(Err(Failure::Disconnected)));
            program.may_fail.clear();
            let again = right(&mut program, &mut remotes, true);
            program.receive(Receive::tagged(0, 1, 5));
            program.send(Send::tagged(1, 0, 1, 5));
            program.mesh.settle();
            remotes.take_events(&mut program);
            assert_eq!(remotes.result(again), Some(Ok(())));
            program.finish();
        }
    }
}
