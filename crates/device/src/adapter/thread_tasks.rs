//! What the engine's thread does for turns because it allocates or takes long: outside of the engine, or as a control
//! call.

use crate::adapter::Adapter;
use crate::adapter::local_links::LocalLinks;
use crate::engine::peers::capacity::Lists;
use crate::os::clock;
use crate::pace::ThreadTasks;
use crate::relay::port_authority::PortOwners;
use crate::tap::Tap;

impl Adapter {
    /// Does what turns have asked for: first what other threads wait for, last what may take long.
    pub(super) fn run_tasks(&self, tasks: ThreadTasks, links: &mut LocalLinks) {
        if tasks.contains(ThreadTasks::TURN) {
            self.request_turn();
        }
        if tasks.contains(ThreadTasks::LOCAL) {
            links.work(self);
        }
        if tasks.contains(ThreadTasks::PEER_ROOM) {
            self.make_room_for_peers();
        }
        if tasks.contains(ThreadTasks::HELD_BUFFERS) {
            // Without memory, peers are asked to repeat the packets.
            let _ = self.provide_held_buffers();
        }
        if tasks.contains(ThreadTasks::LISTEN) {
            self.with_engine(|engine| engine.look_at_port(self));
        }
        if tasks.contains(ThreadTasks::SOCKET) {
            self.with_engine(|engine| engine.add_socket(self));
        }
        if tasks.contains(ThreadTasks::REMOVED_QPS) {
            // Freed after the engine is released.
            drop(self.with_engine(|engine| engine.take_removed()));
        }
        if tasks.contains(ThreadTasks::PORT_OWNERS) {
            self.read_port_owners();
        }
        if tasks.contains(ThreadTasks::TAP) {
            self.renew_tap();
        }
        if tasks.contains(ThreadTasks::LOG) {
            self.send_errors.write_log(&self.device, self.config.disabled);
            self.arrival_errors.write_log(&self.device.name);
            self.dropped.write_log(&self.device.name);
        }
    }

    /// Makes room for the entries of peers, if there is too little of it.
    pub(super) fn make_room_for_peers(&self) {
        if let Some(limit) = self.with_engine(|engine| engine.needed_peer_capacity()) {
            let mut larger = Lists::new(limit).ok();
            self.with_engine(|engine| engine.provide_peer_room(self, larger.as_mut()));
        }
    }

    /// Makes a tap for the engine if a watcher watches, or frees it.
    fn renew_tap(&self) {
        let words = &self.shown.tap;
        let now = clock::now().0;
        let new = if words.is_watched(now) {
            if self.with_engine(|engine| engine.has_tap()) {
                return self.with_engine(|engine| engine.keep_tap());
            }
            match Tap::create(words) {
                Ok(tap) => Some(Box::new(tap)),
                Err(error) => {
                    words.refuse(error.raw_os_error().unwrap_or(libc::EIO));
                    None
                }
            }
        } else {
            words.end_watch(now);
            None
        };
        // Freed after the engine is released.
        drop(self.with_engine(|engine| engine.exchange_tap(new)));
    }

    /// Reads which users have port 4791.
    fn read_port_owners(&self) {
        let began = clock::now();
        let mut owners = PortOwners::read();
        self.with_engine(|engine| engine.renew_port_owners(self, &mut owners, began));
    }
}
