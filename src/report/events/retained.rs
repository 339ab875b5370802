//! Bounded queues: the ring of events, and the latest exchanges of a snapshot. The oldest go first.

use std::collections::VecDeque;

use bytes::Bytes;

/// Beside its bytes an item takes about as much memory as this.
const ITEM_BYTES: usize = 64;

/// The latest items, up to a number of bytes.
#[derive(Default)]
pub struct Retained {
    items: VecDeque<Bytes>,
    bytes: usize,
}

impl Retained {
    /// Adds an item, and drops the oldest ones that are too much.
    pub fn push(&mut self, item: Bytes, bytes_max: usize) {
        self.bytes += item.len() + ITEM_BYTES;
        self.items.push_back(item);
        while self.bytes > bytes_max
            && let Some(oldest) = self.items.pop_front()
        {
            self.bytes -= oldest.len() + ITEM_BYTES;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.items.iter()
    }
}

/// The latest events, numbered without gaps.
#[derive(Default)]
pub struct Frames {
    frames: Retained,
    /// The number of the newest frame.
    newest: u64,
}

impl Frames {
    pub fn push(&mut self, number: u64, frame: Bytes, bytes_max: usize) {
        self.frames.push(frame, bytes_max);
        self.newest = number;
    }

    /// Returns the frames after a number, as many as fit but at least one, with the number of the last of them; none
    /// if frames after that number are gone.
    pub fn after(&self, place: u64, bytes_max: usize) -> Option<(u64, Vec<Bytes>)> {
        let missing = usize::try_from(self.newest.checked_sub(place)?).ok()?;
        let first = self.frames.items.len().checked_sub(missing)?;
        let mut bytes = 0;
        let fits = |frame: &&Bytes| {
            let is_first = bytes == 0;
            bytes += frame.len();
            is_first || bytes <= bytes_max
        };
        let frames: Vec<Bytes> = self.frames.items.range(first..).take_while(fits).cloned().collect();
        Some((place + frames.len() as u64, frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u64) -> Bytes {
        Bytes::from(format!("{number:04}"))
    }

    #[test]
    fn a_place_is_followed_in_batches_until_it_is_gone() {
        let mut frames = Frames::default();
        assert_eq!(frames.after(0, 8), Some((0, vec![])));
        for number in 1..=10 {
            frames.push(number, frame(number), 5 * (4 + ITEM_BYTES));
        }
        assert_eq!(frames.after(4, 8), None, "5 is gone");
        assert_eq!(frames.after(5, 8), Some((7, vec![frame(6), frame(7)])));
        assert_eq!(frames.after(7, 1), Some((8, vec![frame(8)])), "one always fits");
        assert_eq!(frames.after(10, 8), Some((10, vec![])));
        assert_eq!(frames.after(11, 8), None, "not yet given out");
    }

    #[test]
    fn an_item_larger_than_all_room_is_not_kept() {
        let mut retained = Retained::default();
        retained.push(frame(1), 100);
        retained.push(Bytes::from(vec![b'x'; 200]), 100);
        assert_eq!((retained.iter().count(), retained.bytes), (0, 0));
    }
}
