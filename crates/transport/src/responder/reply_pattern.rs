//! Whether the application replies to each message soon with a send, and how long an ACK waits for that send.
//!
//! In a ping-pong of such programs the ACK of a message leaves together with the reply, after its last packet. A program
//! that waits for the completion of its message polls until then, and drives its adapter while the reply arrives.
//!
//! Only then does an ACK wait: a waiting ACK is lost if the process ends meanwhile, and the peer would report a
//! delivered message as failed.
//!
//! A program may reply to each message that takes a receive, and to none of the WRITEs between them, which it need not
//! even see: such as MPI's puts between the messages that lock and unlock a window. So the two have a habit each.

use crate::Instant;
use crate::config::Config;
use std::time::Duration;

/// What the last messages and sends show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyPattern {
    /// Of WRITEs that take no receive, and of all other messages.
    habits: [Habit; 2],
    /// The last message took a receive.
    takes_receive: bool,
    /// When the last message was executed.
    executed: Option<Instant>,
    poll: Poll,
    reply: Reply,
    /// Posted sends have not left, or more are unacknowledged than a reply has: the program sends a stream.
    streams: bool,
}

/// How the program replies to messages of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Habit {
    /// Replies in time, up to `MAX_REPLIES`, since the last late or missing one.
    replies: u8,
    /// This number of replies beyond `REPLIES_BEFORE_DELAY` is needed, because ACKs have waited in vain.
    doubts: u8,
    /// How long after its message a reply leaves: the longest of late, which slowly fades.
    usual: Duration,
    /// The program polls once more before it replies.
    replies_after_polls: bool,
}

/// Polls that found nothing, since the last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Poll {
    /// Its ACK does not wait: polls are not seen.
    #[default]
    Unseen,
    None,
    Some,
}

/// The reply to the last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reply {
    /// It has left, or there was no message.
    #[default]
    Left,
    /// No send was posted since the message.
    Awaited,
    /// A send was posted after the message.
    Posted,
    /// A part of it has left.
    Leaving,
}

/// ACKs wait after this number of replies in time in a row.
const REPLIES_BEFORE_DELAY: u8 = 8;
/// The most replies in a row that are needed after ACKs have waited in vain.
const MAX_REPLIES: u8 = 128;
/// The most sends that a reply consists of, such as data and a flag.
const SENDS_OF_REPLY: u32 = 4;
/// The longest time that an ACK waits while its reply leaves, in ACK delays.
const LONGEST_REPLY: u32 = 8;
/// The longest time that an ACK waits for its reply while polls find nothing, and share of the replies' usual time.
const LONGEST_USUAL: Duration = Duration::from_micros(10);
const USUAL_TIMES: u32 = 2;
/// Share of the ACK delay in which the peer's ACK follows its message: sent at once, but in a datagram of its own.
const PEER_ACK_FOLLOWS: u32 = 4;

impl ReplyPattern {
    /// A message was executed, of one packet if `single`. Returns whether its ACK may wait for the application's reply.
    #[inline]
    pub fn message_executed(&mut self, now: Instant, single: bool, takes_receive: bool, config: &Config) -> bool {
        if matches!(self.reply, Reply::Awaited | Reply::Posted) {
            self.habit().replies = 0;
        }
        (self.executed, self.reply, self.takes_receive) = (Some(now), Reply::Awaited, takes_receive);
        let habit = *self.habit();
        // ACKs in the other direction of a stream must not wait: the peer may send a stream as well.
        let enough = habit.replies >= REPLIES_BEFORE_DELAY + habit.doubts && !self.streams;
        let waits = enough && (single || config.program_polls);
        self.poll = if waits { Poll::None } else { Poll::Unseen };
        waits
    }

    /// Of messages like the last one.
    #[inline]
    fn habit(&mut self) -> &mut Habit {
        &mut self.habits[usize::from(self.takes_receive)]
    }

    /// A send was posted.
    #[inline]
    pub fn send_posted(&mut self) {
        self.streams = true;
        if self.reply == Reply::Awaited {
            self.reply = Reply::Posted;
        }
    }

    /// The posted sends are about to leave.
    #[inline]
    pub fn sends_leave(&mut self, now: Instant, config: &Config) {
        if self.reply == Reply::Posted {
            self.reply = Reply::Leaving;
            let took = self.executed.map(|since| now - since).filter(|took| *took <= config.tuning.ack_delay);
            let poll = self.poll;
            let habit = self.habit();
            habit.replies = if took.is_some() { MAX_REPLIES.min(habit.replies + 1) } else { 0 };
            if let Some(took) = took {
                habit.usual = took.max((3 * habit.usual + took) / 4);
                if poll != Poll::Unseen {
                    habit.replies_after_polls = poll == Poll::Some;
                }
            }
        }
    }

    /// Posted sends have left: all of them, or a part (`all` is false). This number of them is `unacknowledged`.
    #[inline]
    pub fn sends_left(&mut self, all: bool, unacknowledged: u32) {
        self.streams = !all || unacknowledged > SENDS_OF_REPLY;
        if all && self.reply == Reply::Leaving {
            self.reply = Reply::Left;
        }
    }

    /// The time until which the ACK may wait for the rest of its reply.
    pub fn rest_of_reply(&self, now: Instant, config: &Config) -> Instant {
        let delay = config.tuning.ack_delay;
        self.executed.map_or(now, |since| (now + delay).min(since + LONGEST_REPLY * delay))
    }

    /// The program polled, and its poll found nothing. Returns whether an ACK goes on waiting: for the rest of its
    /// reply; because the peer's ACK (of a request that is `unacknowledged`) follows the message, and the program
    /// replies only when it has seen that; or because the reply is not later than usual, and the last one came
    /// after such a poll: some programs (libfabric's rxm) poll until nothing is left before they look at what came.
    pub fn waits_beyond_poll(&mut self, now: Instant, unacknowledged: bool, config: &Config) -> bool {
        let habit = *self.habit();
        let follows = if unacknowledged { config.tuning.ack_delay / PEER_ACK_FOLLOWS } else { Duration::ZERO };
        let usual = if habit.replies_after_polls { USUAL_TIMES * habit.usual } else { Duration::ZERO };
        let usual = usual.min(LONGEST_USUAL);
        self.poll = Poll::Some;
        let waits_for = follows.max(usual).min(config.tuning.ack_delay);
        self.reply == Reply::Leaving || self.executed.is_some_and(|since| now < since + waits_for)
    }

    /// A waiting ACK leaves with its reply.
    #[inline]
    pub fn ack_left_with_reply(&mut self) {
        let habit = self.habit();
        habit.doubts = habit.doubts.saturating_sub(1);
    }

    /// An ACK has waited for a reply that was not posted in time.
    #[cold]
    pub fn reply_late(&mut self) {
        self.habit().replies = 0;
    }

    /// An ACK has waited in vain: the program polls, and has not replied yet. Two programs that post at the same time,
    /// and then wait for each other, look like a ping-pong: their ACKs wait in vain more and more seldom.
    #[cold]
    pub fn waited_in_vain(&mut self) {
        let habit = self.habit();
        habit.replies /= 2;
        habit.doubts = (2 * habit.doubts + REPLIES_BEFORE_DELAY).min(MAX_REPLIES - REPLIES_BEFORE_DELAY);
    }
}
