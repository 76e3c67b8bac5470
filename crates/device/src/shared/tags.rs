//! The list of tags of a TM SRQ, in the order in which the program added them.
//!
//! The list and the program's own list of unexpected messages must agree. A message that matches no tag is unexpected,
//! and the program may add a matching tag before it sees the message. So after an unexpected message the list does not
//! match the tags that are added, until the program reports that it has compared all unexpected messages with all tags.

use crate::Errno;
use crate::os::grow::Grow;
use weir_transport::{PostError, Sge};

/// A tagged buffer.
#[derive(Clone, Copy, Debug)]
pub struct TagBuffer<'a> {
    /// Identifies the buffer in the completions of its message.
    pub wr_id: u64,
    pub tag: u64,
    /// A message matches if its tag, masked, is `tag`.
    pub mask: u64,
    pub sges: &'a [Sge],
}

/// The list; its memory is allocated at once.
pub(crate) struct TagList {
    entries: Box<[Entry]>,
    sges: Box<[Sge]>,
    max_sge: usize,
    first: Link,
    last: Link,
    free: Link,
    /// Unexpected messages so far, and those that the program has reported. Programs and adapters count them in 16 bits.
    unexpected: u16,
    reported: u16,
    /// The last report was the number of unexpected messages: all tags are matched.
    in_sync: bool,
}

/// The index of an entry.
type Link = Option<u16>;

#[derive(Clone, Copy, Default)]
struct Entry {
    tag: u64,
    mask: u64,
    wr_id: u64,
    num_sge: u16,
    /// How often the entry was used, wrapping: an old handle of it is not a handle of its present tag.
    generation: u16,
    listed: bool,
    /// Messages are compared with it.
    active: bool,
    previous: Link,
    /// In the list, or among the free entries.
    next: Link,
}

/// When the program has reported this many unexpected messages less than there are, each of them asks for a report.
const MAX_UNREPORTED: u16 = 0x3fff;

impl TagList {
    /// An empty list for `max_tags` tags, 65,535 at most. ENOMEM without memory.
    pub fn new(max_tags: u16, max_sge: u32) -> Result<TagList, Errno> {
        let (count, max_sge) = (usize::from(max_tags), max_sge as usize);
        let (mut entries, mut sges) = (Vec::for_capacity(count)?, Vec::for_capacity(count * max_sge)?);
        sges.resize(count * max_sge, Sge::default());
        entries
            .extend((1..=max_tags).map(|next| Entry { next: (next < max_tags).then_some(next), ..Entry::default() }));
        Ok(TagList {
            entries: entries.into(),
            sges: sges.into(),
            max_sge,
            first: None,
            last: None,
            free: (max_tags > 0).then_some(0),
            unexpected: 0,
            reported: 0,
            in_sync: true,
        })
    }

    /// Whether all tags of the list are matched.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    /// Adds a tag at the end and returns its handle. It is matched if the list is in sync, or when it is again.
    pub fn add(&mut self, buffer: &TagBuffer<'_>) -> Result<u32, PostError> {
        if buffer.sges.len() > self.max_sge {
            return Err(PostError::TooManySges);
        }
        let index = self.free.ok_or(PostError::QueueFull)?;
        let previous = self.last.replace(index);
        match previous {
            Some(previous) => self.entry(previous).next = Some(index),
            None => self.first = Some(index),
        }
        let at = usize::from(index) * self.max_sge;
        self.sges[at..][..buffer.sges.len()].copy_from_slice(buffer.sges);
        let active = self.in_sync;
        let entry = self.entry(index);
        let (free, generation) = (entry.next, entry.generation.wrapping_add(1));
        let TagBuffer { wr_id, tag, mask, sges } = *buffer;
        let num_sge = sges.len() as u16;
        *entry = Entry { tag, mask, wr_id, num_sge, generation, listed: true, active, previous, next: None };
        self.free = free;
        Ok(u32::from(generation) << 16 | u32::from(index))
    }

    /// Removes a tag. False: its handle is old, because a message has matched it or it was removed before. Error: the
    /// list has no such handle.
    pub fn remove(&mut self, handle: u32) -> Result<bool, PostError> {
        let (index, generation) = (handle as u16, (handle >> 16) as u16);
        let entry = self.entries.get(usize::from(index)).ok_or(PostError::Operation)?;
        let found = entry.listed && entry.generation == generation;
        if found {
            self.unlink(index);
        }
        Ok(found)
    }

    /// The program has compared `count` unexpected messages in total with all tags of the list.
    pub fn report(&mut self, count: u32) {
        self.reported = count as u16;
        self.compare_counts();
    }

    /// A message that was counted has failed: the program never counts it.
    pub fn uncount_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_sub(1);
        self.compare_counts();
    }

    /// Takes the oldest tag that a message with this tag matches: its `wr_id` and the number of SGEs, which are copied to
    /// the front of `sges`.
    pub fn take(&mut self, tag: u64, sges: &mut [Sge]) -> Option<(u64, usize)> {
        let mut next = self.first;
        while let Some(index) = next {
            let Entry { wr_id, num_sge, .. } = match self.entries[usize::from(index)] {
                entry if entry.active && tag & entry.mask == entry.tag => entry,
                entry => {
                    next = entry.next;
                    continue;
                }
            };
            let (at, num_sge) = (usize::from(index) * self.max_sge, usize::from(num_sge));
            sges[..num_sge].copy_from_slice(&self.sges[at..][..num_sge]);
            self.unlink(index);
            return Some((wr_id, num_sge));
        }
        None
    }

    /// A message matched no tag. True: too many such messages are not reported.
    pub fn count_unexpected(&mut self) -> bool {
        self.unexpected = self.unexpected.wrapping_add(1);
        self.in_sync = false;
        self.unexpected.wrapping_sub(self.reported) > MAX_UNREPORTED
    }

    fn compare_counts(&mut self) {
        self.in_sync = self.reported == self.unexpected;
        let mut next = self.first.filter(|_| self.in_sync);
        while let Some(index) = next {
            let entry = self.entry(index);
            (entry.active, next) = (true, entry.next);
        }
    }

    fn unlink(&mut self, index: u16) {
        let free = self.free.replace(index);
        let entry = self.entry(index);
        let (previous, next) = (entry.previous, entry.next);
        (entry.listed, entry.active, entry.next) = (false, false, free);
        match previous {
            Some(previous) => self.entry(previous).next = next,
            None => self.first = next,
        }
        match next {
            Some(next) => self.entry(next).previous = previous,
            None => self.last = previous,
        }
    }

    fn entry(&mut self, index: u16) -> &mut Entry {
        &mut self.entries[usize::from(index)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(max_tags: u16) -> TagList {
        TagList::new(max_tags, 2).unwrap()
    }

    fn add_masked(list: &mut TagList, wr_id: u64, tag: u64, mask: u64) -> Result<u32, PostError> {
        list.add(&TagBuffer { wr_id, tag, mask, sges: &[Sge { addr: wr_id, length: 1, lkey: 2 }] })
    }

    fn add(list: &mut TagList, wr_id: u64, tag: u64) -> u32 {
        add_masked(list, wr_id, tag, u64::MAX).unwrap()
    }

    fn take(list: &mut TagList, tag: u64) -> Option<u64> {
        let mut sges = [Sge::default(); 2];
        let (wr_id, num_sge) = list.take(tag, &mut sges)?;
        assert_eq!((num_sge, sges[0].addr), (1, wr_id));
        Some(wr_id)
    }

    #[test]
    fn the_oldest_tag_that_matches_is_taken() {
        let mut list = list(8);
        for (wr_id, tag, mask) in [(1, 0x11, 0xff), (2, 0x10, 0xf0), (3, 0x11, 0xff), (4, 0, 0)] {
            add_masked(&mut list, wr_id, tag, mask).unwrap();
        }
        // 0x15 matches the second by its mask, then only the last, which matches everything.
        assert_eq!([0x15, 0x511, 0x11, 0x11].map(|tag| take(&mut list, tag)), [Some(2), Some(1), Some(3), Some(4)]);
        assert_eq!(take(&mut list, 0x11), None);
        // Bits of the tag outside of its mask match no message.
        add_masked(&mut list, 5, 0x101, 0xff).unwrap();
        assert_eq!([1, 0x101].map(|tag| take(&mut list, tag)), [None, None]);
    }

    #[test]
    fn a_full_list_takes_no_tag_and_a_handle_is_good_once() {
        let mut list = list(3);
        let [first, second, third] = [1, 2, 3].map(|id| add(&mut list, id, id));
        assert_eq!(add_masked(&mut list, 4, 4, 0), Err(PostError::QueueFull));
        assert_eq!(list.remove(second), Ok(true));
        assert_eq!(list.remove(second), Ok(false), "it was removed");
        assert_eq!(take(&mut list, 1), Some(1));
        assert_eq!(list.remove(first), Ok(false), "a message took it");
        let again = [add(&mut list, 5, 5), add(&mut list, 6, 6)];
        assert!(!again.contains(&first) && !again.contains(&second));
        assert_eq!([first, second].map(|old| list.remove(old)), [Ok(false); 2], "the entries have other tags now");
        assert_eq!([list.remove(3), list.remove(0xffff)], [Err(PostError::Operation); 2]);
        assert_eq!([3, 5, 6].map(|tag| take(&mut list, tag)), [3, 5, 6].map(Some));
        assert_eq!(list.remove(third), Ok(false));
        let sges = [Sge::default(); 3];
        let refused = list.add(&TagBuffer { wr_id: 1, tag: 1, mask: 1, sges: &sges });
        assert_eq!(refused, Err(PostError::TooManySges));
        let mut none = self::list(0);
        assert_eq!(add_masked(&mut none, 1, 1, 1), Err(PostError::QueueFull));
    }

    #[test]
    fn new_tags_are_matched_when_all_unexpected_messages_are_reported() {
        let mut list = list(8);
        let _ = add(&mut list, 1, 7);
        assert!(!list.count_unexpected());
        assert!(!list.is_in_sync());
        let _ = add(&mut list, 2, 7);
        let third = add(&mut list, 3, 8);
        assert_eq!([take(&mut list, 8), take(&mut list, 7), take(&mut list, 7)], [None, Some(1), None]);
        list.report(0);
        assert_eq!(take(&mut list, 8), None, "one message was not reported");
        list.count_unexpected();
        list.report(1);
        assert_eq!(take(&mut list, 8), None);
        // The program finds that an unexpected message belongs to the third.
        assert_eq!(list.remove(third), Ok(true));
        list.report(2);
        assert!(list.is_in_sync());
        assert_eq!([take(&mut list, 8), take(&mut list, 7)], [None, Some(2)]);
        let _ = add(&mut list, 4, 8);
        assert_eq!(take(&mut list, 8), Some(4));
    }

    #[test]
    fn a_failed_message_is_not_counted() {
        let mut list = list(8);
        list.count_unexpected();
        let _ = add(&mut list, 1, 7);
        list.count_unexpected();
        list.uncount_unexpected();
        assert!(!list.is_in_sync(), "the other message is not reported");
        list.report(1);
        assert_eq!(take(&mut list, 7), Some(1));
        // The program has reported all that it will see before the message fails.
        list.count_unexpected();
        let _ = add(&mut list, 2, 8);
        list.report(1);
        assert_eq!(take(&mut list, 8), None);
        list.uncount_unexpected();
        assert!(list.is_in_sync());
        assert_eq!(take(&mut list, 8), Some(2));
    }

    #[test]
    fn the_counts_wrap_at_16_bits() {
        let mut list = list(2);
        let asked: Vec<u32> = (1..=0x1_0002).filter(|_| list.count_unexpected()).collect();
        assert_eq!((asked[0], asked.len()), (0x4000, 0x1_0000 - 0x4000));
        assert_eq!(list.unexpected, 2);
        list.report(0x1_0002);
        assert!(list.is_in_sync());
        list.report(2);
        assert!(list.is_in_sync());
    }
}
