//! Server-sent events from bytes, whatever the chunking.
//!
//! The framer reads a *copy by reference*: the bytes that go to the client are never touched, held back or
//! joined. It works on bytes, not text, because a chunk may end within a UTF-8 sequence. Lines end with LF,
//! CRLF or CR; fields are `event` and `data`; comments and other fields are skipped; an event ends at an
//! empty line. An event cut off by the end of the stream is never reported.
//!
//! ```
//! use forkpoint::engine::answer::sse::Framer;
//! let (mut framer, mut seen) = (Framer::new(1024), 0);
//! framer.push(b"event: ping\nda", |_| seen += 1);
//! framer.push(b"ta: {}\n\n", |event| { assert_eq!(event.data, b"{}"); seen += 1 });
//! assert_eq!(seen, 1);
//! ```

use memchr::memchr2;

/// One event: its name (empty if it has none) and its data lines joined by LF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub name: &'a [u8],
    pub data: &'a [u8],
}

#[derive(Debug)]
pub struct Framer {
    /// The start of a line whose end has not come yet.
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last chunk ended with CR: an LF that follows belongs to it.
    after_cr: bool,
    at_start: bool,
    event_bytes_max: usize,
    overflowed: bool,
}

impl Framer {
    /// `event_bytes_max` bounds what one event may keep in memory; a larger one ends the framing.
    pub fn new(event_bytes_max: usize) -> Framer {
        Framer {
            line: Vec::new(),
            name: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            at_start: true,
            event_bytes_max,
            overflowed: false,
        }
    }

    /// Returns true if an event was too large, so that nothing after it is framed.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// The number of bytes of an unfinished event that are kept, with the room made for them.
    pub fn kept_bytes(&self) -> usize {
        self.line.capacity() + self.data.capacity()
    }

    /// Frames nothing more.
    pub fn give_up(&mut self) {
        self.overflowed = true;
        (self.line, self.data, self.name) = Default::default();
    }

    /// Frames one chunk; `on_event` sees each event that it completes.
    pub fn push(&mut self, mut chunk: &[u8], mut on_event: impl FnMut(Event<'_>)) {
        if self.overflowed {
            return;
        }
        if self.after_cr && !chunk.is_empty() {
            self.after_cr = false;
            chunk = chunk.strip_prefix(b"\n").unwrap_or(chunk);
        }
        while let Some(end) = memchr2(b'\n', b'\r', chunk) {
            if self.line.is_empty() {
                self.end_line(&chunk[..end], &mut on_event);
            } else {
                self.line.extend_from_slice(&chunk[..end]);
                let line = std::mem::take(&mut self.line);
                self.end_line(&line, &mut on_event);
                self.line = line;
                self.line.clear();
            }
            let width = match chunk[end..] {
                [b'\r', b'\n', ..] => 2,
                [b'\r'] => {
                    self.after_cr = true;
                    1
                }
                _ => 1,
            };
            chunk = &chunk[end + width..];
        }
        self.line.extend_from_slice(chunk);
        self.overflowed |= self.line.len() + self.data.len() > self.event_bytes_max;
        if self.overflowed {
            self.give_up();
        }
    }

    fn end_line(&mut self, line: &[u8], on_event: &mut impl FnMut(Event<'_>)) {
        if self.overflowed || line.len() + self.data.len() > self.event_bytes_max {
            self.overflowed = true;
            return;
        }
        let is_first = std::mem::take(&mut self.at_start);
        let line = if is_first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.is_empty() {
            if self.has_data {
                on_event(Event { name: &self.name, data: &self.data });
            }
            self.name.clear();
            self.data.clear();
            self.has_data = false;
        } else if let Some(value) = field(line, b"data") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data.extend_from_slice(value);
        } else if let Some(value) = field(line, b"event") {
            self.name.clear();
            self.name.extend_from_slice(value);
        }
    }
}

/// The value of a line `name: value` (one space after the colon does not count) or of the bare `name`.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Seen = Vec<(Vec<u8>, Vec<u8>)>;

    fn frame(chunks: &[&[u8]]) -> Seen {
        frame_within(1 << 20, chunks)
    }

    fn frame_within(event_bytes_max: usize, chunks: &[&[u8]]) -> Seen {
        let mut seen = Seen::new();
        let mut framer = Framer::new(event_bytes_max);
        for chunk in chunks {
            framer.push(chunk, |event| seen.push((event.name.to_vec(), event.data.to_vec())));
        }
        seen
    }

    fn event(name: &str, data: &str) -> (Vec<u8>, Vec<u8>) {
        (name.as_bytes().to_vec(), data.as_bytes().to_vec())
    }

    #[test]
    fn comments_other_fields_and_empty_events_are_skipped() {
        let stream =
            b"\xef\xbb\xbf: hi\n\nevent: a\nid: 7\nretry: 1\ndata: x\ndata:y\n\nevent: lost\n\ndata\n\n";
        assert_eq!(frame(&[stream]), vec![event("a", "x\ny"), event("", "")]);
    }

    #[test]
    fn all_three_line_ends_work_alike() {
        for end in ["\n", "\r\n", "\r"] {
            let stream = format!("event: a{end}data: 1{end}{end}data: 2{end}{end}");
            assert_eq!(frame(&[stream.as_bytes()]), vec![event("a", "1"), event("", "2")], "{end:?}");
        }
    }

    #[test]
    fn an_unfinished_event_is_not_reported() {
        assert_eq!(frame(&[b"data: 1\n\ndata: 2\n"]), vec![event("", "1")]);
    }

    #[test]
    fn an_event_over_the_limit_ends_the_framing_and_frees_its_memory() {
        let mut framer = Framer::new(10);
        let mut seen = 0;
        framer.push(b"data: 1\n\n", |_| seen += 1);
        framer.push(b"data: 12345678901234567890", |_| seen += 1);
        framer.push(b"\n\ndata: 3\n\n", |_| seen += 1);
        assert!(framer.overflowed());
        assert_eq!((seen, framer.line.capacity()), (1, 0));
    }

    fn any_stream() -> impl Strategy<Value = Vec<u8>> {
        let part = prop::sample::select(vec![
            "data: ",
            "event: ",
            "data",
            ":",
            "\n",
            "\r",
            "\r\n",
            "\n\n",
            "\r\n\r\n",
            "x",
            "é😀",
            "{\"a\":1}",
            "\u{feff}",
            " ",
        ]);
        prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn framing_does_not_depend_on_chunking(
            stream in any_stream(),
            most in prop::sample::select(vec![4, 12, 40, 1 << 20]),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<_> = cuts.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
            let bytewise: Vec<_> = stream.chunks(1).collect();
            let whole = frame_within(most, &[&stream]);
            prop_assert_eq!(frame_within(most, &chunks), whole.clone());
            prop_assert_eq!(frame_within(most, &bytewise), whole);
        }
    }
}
