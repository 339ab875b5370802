//! Comparing a value with another spelling of it, without the meaning of either: for a client that spells the same
//! tools anew each turn, most strings are equal byte for byte, and nothing needs to be written or hashed.

use crate::engine::request::json::{
    self, Malformed, Span, skip_space, string_end, value_end, walk_array, walk_object,
};

/// Larger, wider or deeper values are compared by their meanings: names are looked for one by one.
const BYTES_MAX: usize = 256 * 1024;
/// As many as a `u64` has bits, one for each member that was found.
const MEMBERS_MAX: usize = 64;
const DEPTH_MAX: usize = 12;

/// Returns true if `value` means what `sound` means, which is known to have a meaning ([`super::Meaning::of_sound`]).
/// `false` says nothing: the meanings decide then.
pub fn is_respelt(sound: &[u8], value: &[u8]) -> bool {
    Tree::of(sound).is_some_and(|tree| tree.is_respelt(sound, value))
}

/// Returns true if two values may be equal but for their order: both have as many bytes, and the same sum of them. Far
/// cheaper than a comparison that fails.
pub fn is_reordered(one: &[u8], two: &[u8]) -> bool {
    // The sum of this many bytes fits into 16 bits, so that the compiler can add many of them side by side.
    const RUN: usize = 256;
    let run = |bytes: &[u8]| bytes.iter().fold(0_u16, |sum, byte| sum.wrapping_add(u16::from(*byte)));
    let sum = |bytes: &[u8]| bytes.chunks(RUN).map(|bytes| u64::from(run(bytes))).sum::<u64>();
    one.len() == two.len() && sum(one) == sum(two)
}

/// The places of everything inside a value that others are compared with often.
#[derive(Debug)]
pub struct Tree {
    /// Each before what it holds.
    nodes: Box<[Node]>,
    /// Those of one object are next to each other, in its order.
    members: Box<[TreeMember]>,
}

#[derive(Debug)]
struct Node {
    value: TreePart,
    /// The first node that is not inside this one.
    next: u32,
    /// Of an object: which members are its own.
    members: (u32, u32),
}

#[derive(Debug)]
struct TreeMember {
    key: TreePart,
    node: u32,
}

/// A span within a value of at most [`BYTES_MAX`], and its first bytes: most parts differ there, and many have no
/// more.
#[derive(Clone, Copy, Debug)]
struct TreePart {
    start: u32,
    end: u32,
    head: u64,
}

impl TreePart {
    fn of(bytes: &[u8], span: &Span) -> TreePart {
        TreePart { start: span.start as u32, end: span.end as u32, head: head(&bytes[span.clone()]) }
    }

    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    fn bytes<'b>(&self, of: &'b [u8]) -> &'b [u8] {
        &of[self.start as usize..self.end as usize]
    }

    /// Returns true if a text that begins with `first` may begin with this part, which is not empty.
    fn is_like(&self, first: u64) -> bool {
        let beyond = 8 * size_of_val(&first).saturating_sub(self.len()) as u32;
        (self.head ^ first).wrapping_shl(beyond) == 0
    }

    /// Returns true if `rest`, whose head is `first`, begins with this part of `of`.
    fn begins(&self, of: &[u8], rest: &[u8], first: u64) -> bool {
        let is_short = self.len() <= size_of_val(&first) && rest.len() >= self.len();
        self.is_like(first) && (is_short || rest.starts_with(self.bytes(of)))
    }
}

/// The first eight bytes, with zeros behind what is shorter.
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(first) => u64::from_le_bytes(*first),
        None => bytes.iter().rev().fold(0, |head, byte| head << 8 | u64::from(*byte)),
    }
}

impl Tree {
    /// `None` for a value that is too large, nests too deep or is malformed.
    pub fn of(value: &[u8]) -> Option<Tree> {
        if value.len() > BYTES_MAX {
            return None;
        }
        let mut planted =
            Planted { bytes: value, nodes: Vec::with_capacity(value.len() / 16 + 1), members: Vec::new() };
        planted.add(0, 0).ok()?;
        Some(Tree { nodes: planted.nodes.into(), members: planted.members.into() })
    }

    /// Returns true if `value` means what `sound` means, whose tree this is.
    pub fn is_respelt(&self, sound: &[u8], value: &[u8]) -> bool {
        self.respelt_end(sound, value, 0).is_some()
    }

    /// Returns where the value at `at` of these bytes ends, if it means what `sound` means.
    pub fn respelt_end(&self, sound: &[u8], bytes: &[u8], at: usize) -> Option<usize> {
        Pair { tree: self, sound, value: bytes }.same(0, at)
    }

    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Tree>() + size_of_val(&*self.nodes) + size_of_val(&*self.members)
    }
}

/// A tree that is being built.
struct Planted<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node>,
    members: Vec<TreeMember>,
}

impl Planted<'_> {
    fn add(&mut self, start: usize, depth: usize) -> Result<usize, Malformed> {
        let (bytes, place) = (self.bytes, self.nodes.len());
        // A node comes before those inside it, so it takes its place now and its contents at the end.
        let unknown = TreePart::of(bytes, &(start..start));
        self.nodes.push(Node { value: unknown, next: 0, members: (0, 0) });
        let mut own = Vec::new();
        let end = match bytes.get(start) {
            Some(b'{' | b'[') if depth == DEPTH_MAX => Err(Malformed::TooDeep),
            Some(b'{') => walk_object(bytes, start, |key, start| {
                own.push(TreeMember { key: TreePart::of(bytes, &key), node: self.nodes.len() as u32 });
                self.add(start, depth + 1)
            }),
            Some(b'[') => walk_array(bytes, start, |start| self.add(start, depth + 1)),
            _ => value_end(bytes, start),
        }?;
        let first = self.members.len() as u32;
        self.members.append(&mut own);
        let members = (first, self.members.len() as u32);
        let next = self.nodes.len() as u32;
        self.nodes[place] = Node { value: TreePart::of(bytes, &(start..end)), next, members };
        Ok(end)
    }
}

struct Pair<'a> {
    tree: &'a Tree,
    sound: &'a [u8],
    value: &'a [u8],
}

impl Pair<'_> {
    /// Returns where the value that starts at `at` ends, if it means what the node means.
    fn same(&self, node: usize, at: usize) -> Option<usize> {
        let part = &self.tree.nodes[node].value;
        let (known, rest) = (part.bytes(self.sound), self.value.get(at..)?);
        let first = known.first()?;
        if part.begins(self.sound, rest, head(rest)) {
            // What has an end of its own ends where the equal bytes end; the rest ends before what cannot go on.
            let closes = matches!(first, b'"' | b'{' | b'[');
            if closes || matches!(rest.get(known.len()), None | Some(b',' | b'}' | b']')) {
                return Some(at + known.len());
            }
        }
        match (first, rest.first()?) {
            (b'{', b'{') => self.object(node, at),
            (b'[', b'[') => self.array(node, at),
            (b'{' | b'[', _) | (_, b'{' | b'[') => None,
            _ => {
                let end = value_end(self.value, at).ok()?;
                self.same_scalar(known, at..end).then_some(end)
            }
        }
    }

    /// Equal bytes are as sound as the known ones. Of others only strings can say the same.
    fn same_scalar(&self, known: &[u8], value: Span) -> bool {
        let raw = &self.value[value.clone()];
        let is_string = |raw: &[u8]| raw.first() == Some(&b'"');
        let is_escaped = |raw: &[u8]| memchr::memchr(b'\\', raw).is_some();
        known == raw
            || is_string(known)
                && is_string(raw)
                && (is_escaped(known) || is_escaped(raw))
                && !json::has_control(raw)
                && {
                    let text = json::text(self.value, &value);
                    text.is_some() && text == json::text(known, &(0..known.len()))
                }
    }

    fn array(&self, node: usize, at: usize) -> Option<usize> {
        let nodes = &self.tree.nodes;
        let (mut next, last) = (node + 1, nodes[node].next as usize);
        let end = walk_array(self.value, at, |start| {
            let end = if next < last { self.same(next, start) } else { None };
            next = nodes.get(next).map_or(last, |node| node.next as usize);
            end.ok_or(Malformed::At(start))
        });
        if next == last { end.ok() } else { None }
    }

    /// A sound object has each name once, so a name that comes twice finds nothing the second time.
    fn object(&self, node: usize, at: usize) -> Option<usize> {
        let value = self.value;
        let (first, last) = self.tree.nodes[node].members;
        let members = &self.tree.members[first as usize..last as usize];
        if members.len() > MEMBERS_MAX {
            return None;
        }
        // The members that were found, one bit each.
        let mut found = 0_u64;
        let mut at = skip_space(value, at + 1);
        while value.get(at)? != &b'}' {
            let (number, key_end) = self.member(members, found, at)?;
            found |= 1 << number;
            let colon = skip_space(value, key_end);
            let start = (value.get(colon)? == &b':').then(|| skip_space(value, colon + 1))?;
            at = skip_space(value, self.same(members[number].node as usize, start)?);
            match value.get(at)? {
                b',' => {
                    at = skip_space(value, at + 1);
                    // Another one has to follow.
                    (value.get(at)? == &b'"').then_some(())?;
                }
                b'}' => {}
                _ => return None,
            }
        }
        (found.count_ones() as usize == members.len()).then_some(at + 1)
    }

    /// Returns the number of the member whose name is at `at`, and where that name ends. A processor cannot predict
    /// which one it is, so that looking at all of them is faster than to stop at the right one.
    fn member(&self, members: &[TreeMember], found: u64, at: usize) -> Option<(usize, usize)> {
        let rest = &self.value[at..];
        let first = head(rest);
        let mut likely = 0_u64;
        for (number, member) in members.iter().enumerate() {
            likely |= u64::from(member.key.is_like(first)) << number;
        }
        likely &= !found;
        while likely != 0 {
            let number = likely.trailing_zeros() as usize;
            let key = &members[number].key;
            if key.begins(self.sound, rest, first) {
                return Some((number, at + key.len()));
            }
            likely &= likely - 1;
        }
        let end = string_end(self.value, at).ok()?;
        let is_same = |(number, member): &(usize, &TreeMember)| {
            found >> number & 1 == 0 && self.same_scalar(member.key.bytes(self.sound), at..end)
        };
        members.iter().enumerate().find(is_same).map(|(number, _)| (number, end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Meaning;
    use super::*;

    #[test]
    fn spellings_of_one_value_are_known_and_other_values_are_not() {
        let sound = r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","c":{}}"#;
        for same in [
            sound,
            r#"{"c":{ },"b":"\/","a":[1,{"y":2,"x":"\u00e9\n"}]}"#,
            r#"{ "\u0061" : [ 1 , {"x":"é\u000a","y":2} ], "b":"/", "c":{}}"#,
        ] {
            assert!(is_respelt(sound.as_bytes(), same.as_bytes()), "{same}");
        }
        for other in [
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/"}"#,
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","c":{},"d":1}"#,
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","c":{},"c":{}}"#,
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","b":{}}"#,
            r#"{"a":[1.0,{"x":"é\n","y":2}],"b":"/","c":{}}"#,
            r#"{"a":[1],"b":"/","c":{}}"#,
            r#"{"a":[1,{"x":"é\n","y":2},3],"b":"/","c":{}}"#,
            r#"{"a":[1,{"x":"\ud800","y":2}],"b":"/","c":{}}"#,
            "[]",
            "",
        ] {
            assert!(!is_respelt(sound.as_bytes(), other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn another_order_has_the_same_bytes_and_most_other_values_do_not() {
        let one = br#"{"a":[1,2],"b":{"x":"y"}}"#;
        assert!(is_reordered(one, br#"{"b":{"x":"y"},"a":[1,2]}"#));
        assert!(!is_reordered(one, br#"{"a":[1,3],"b":{"x":"y"}}"#));
        assert!(!is_reordered(one, br#"{"a":[1,2],"b":{"x":"y"}} "#));
        let long = |first: u8, last: u8| [&[first][..], &[0xff; 1_000], &[last]].concat();
        assert!(is_reordered(&long(1, 2), &long(2, 1)));
        assert!(!is_reordered(&long(1, 2), &long(1, 3)));
    }

    #[test]
    fn names_are_told_apart_whatever_they_have_in_common() {
        let object = |names: &[&str]| {
            let members: Vec<_> = names.iter().map(|name| format!(r#""{name}":"{name}""#)).collect();
            format!("{{{}}}", members.join(","))
        };
        let names = ["", "a", "ab", "abcdef", "abcdefg", "abcdefgh", "abcdefghi", "abcdefgx"];
        let sound = object(&names);
        let mut turned = names;
        for _ in 0..names.len() {
            turned.rotate_left(1);
            assert!(is_respelt(sound.as_bytes(), object(&turned).as_bytes()));
        }
        let many: Vec<String> = (0..65).map(|number| format!("n{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let mut shuffled = many.clone();
        shuffled.rotate_left(9);
        assert!(is_respelt(object(&many[..64]).as_bytes(), object(&many[..64]).as_bytes()));
        assert!(!is_respelt(object(&many).as_bytes(), object(&shuffled).as_bytes()), "the meanings decide");
    }

    /// Values of few words, so that many are alike.
    fn any_value() -> impl Strategy<Value = String> {
        let words = [
            "1",
            "1.0",
            "true",
            "\"a\"",
            "\"\\u0061\"",
            "\"é\"",
            "\"\\u00e9\"",
            "\"\\n\"",
            "\"\n\"",
            "\"\\ud800\"",
        ];
        let scalar = prop::sample::select(words.to_vec()).prop_map(String::from);
        let key = prop::sample::select(vec!["\"a\"", "\"\\u0061\"", "\"b\"", "\"c\"", "\"\\n\""]);
        scalar.prop_recursive(4, 12, 3, move |inner| {
            let member = (key.clone(), inner.clone()).prop_map(|(key, value)| format!("{key}:{value}"));
            prop_oneof![
                prop::collection::vec(inner, 0..3).prop_map(|items| format!("[{}]", items.join(" ,"))),
                prop::collection::vec(member, 0..3).prop_map(|items| format!("{{{}}}", items.join(", "))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn it_says_what_the_meanings_say(one in any_value(), two in any_value()) {
            let meaning = |value: &str| Meaning::of_sound(value.as_bytes());
            if let Some(sound) = meaning(&one) {
                prop_assert_eq!(is_respelt(one.as_bytes(), two.as_bytes()), meaning(&two) == Some(sound));
                prop_assert!(is_respelt(one.as_bytes(), one.as_bytes()));
            }
        }
    }
}
