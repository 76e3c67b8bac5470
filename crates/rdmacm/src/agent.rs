//! The agent: a thread of the process that takes MADs, does what is due, and notices closed files.

use crate::live::Token;
use crate::process::{Live, Process};
use std::os::fd::RawFd;
use std::time::Duration;

/// Events that one look takes.
const EVENTS: usize = 64;
/// For how long devices stay open after the last file was closed: messages may come again that a peer repeats, and the
/// program may open another file.
const REST_AFTER: Duration = Duration::from_secs(1);

/// The agent's loop, which lasts as long as the process.
pub fn run(process: &'static Process, epoll: RawFd) {
    // SAFETY: plain integers, for which zero is valid.
    let mut events: [libc::epoll_event; EVENTS] = unsafe { std::mem::zeroed() };
    let mut timeout = -1;
    let mut unused_since = None;
    loop {
        if !weir_device::descriptors::is_marked(epoll) {
            tracing::error!(
                "rdma_cm stops because the program has closed descriptors of Weir: connections get no events any more. \
                 Close only descriptors that the program has opened"
            );
            return;
        }
        // SAFETY: room for `EVENTS` events.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as i32, timeout) };
        let mut guard = process.lock();
        let Some(live) = guard.as_mut() else { return };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            live.handle(Token::of(event.u64));
        }
        let now = weir_device::now();
        if live.manager.next().is_some_and(|due| due <= now) {
            live.manager.tick(now);
        }
        let mut rest_of_end = None;
        if process.is_ending() {
            rest_of_end = live.manager.end(now);
            // Not if devices are closed already.
            if rest_of_end.is_none() && unused_since.is_none_or(|since| now - since < REST_AFTER) {
                live.manager.repeat_ends();
            }
            live.manager.host().settle();
            if rest_of_end.is_none() {
                process.has_told();
            }
        }
        let rest = if live.manager.is_unused() {
            let since = *unused_since.get_or_insert(now);
            if now - since >= REST_AFTER {
                live.manager.host().rest();
                None
            } else {
                Some(since + REST_AFTER)
            }
        } else {
            unused_since = None;
            None
        };
        let resume = live.manager.host().resume(now);
        let next = live.manager.next().into_iter().chain(rest).chain(resume).chain(rest_of_end).min();
        live.sleeps_until = next;
        // Rounded up: the agent must not look too early again and again.
        timeout = next.map_or(-1, |due| {
            let nanos = due.0.saturating_sub(now.0);
            i32::try_from(nanos.div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
    }
}

impl Live {
    fn handle(&mut self, token: Token) {
        let service = match token {
            Token::Kick => return self.kick.take(),
            Token::Device => {
                let gone = self.manager.host().removed();
                return self.manager.devices_removed(weir_device::now(), &gone);
            }
            Token::Process => None,
            Token::Service(service) => Some(service),
            Token::File(number) => {
                let closed = self.files.iter().find(|(_, file)| file.number == number).map(|(inode, _)| *inode);
                if let Some(inode) = closed {
                    self.close(inode);
                }
                return;
            }
        };
        let mads = self.manager.host().take(service);
        self.manager.arrived(weir_device::now(), &mads);
    }
}
