//! Whether one value is another in a different spelling, without the meaning of either: for a client that spells the
//! same tools anew each turn, most strings are equal byte for byte, and nothing needs to be written or hashed.

use crate::engine::json::{
    self, Malformed, Span, skip_space, string_end, value_end, walk_array, walk_object,
};

/// Larger, wider or deeper values are compared by their meanings: names are looked for one by one.
const BYTES_MAX: usize = 256 * 1024;
const MEMBERS_MAX: u32 = 64;
const DEPTH_MAX: usize = 12;

/// Whether `value` means what `sound` means, which is known to have a meaning ([`super::Meaning::of_sound`]). A `false`
/// says nothing: the meanings decide then.
pub fn is_respelt(sound: &[u8], value: &[u8]) -> bool {
    Tree::of(sound).is_some_and(|tree| tree.is_respelt(sound, value))
}

/// Members of a flat object that are compared without a tree.
const FLAT_MAX: usize = 16;

/// Where the object that starts at `at` ends, if it has the members of `known` in any order, byte for byte, and `known`
/// is seen at a glance to have a meaning: it holds no objects, and nothing that readers could see differently. Most
/// inputs of calls are like that. A `None` says nothing.
pub fn reordered_end(known: &[u8], bytes: &[u8], at: usize) -> Option<usize> {
    let mut members = [const { (0..0, 0..0) }; FLAT_MAX];
    let mut count = 0;
    let walked = walk_object(known, 0, |key, start| {
        let end = value_end(known, start)?;
        let is_new =
            members[..count].iter().all(|(name, _): &(Span, Span)| known[name.clone()] != known[key.clone()]);
        let is_flat = known[start] != b'{' && (known[start] != b'[' || !known[start..end].contains(&b'{'));
        if count == FLAT_MAX || !is_new || !is_flat || known[key.clone()].contains(&b'\\') {
            return Err(Malformed::At(start));
        }
        members[count] = (key, start..end);
        count += 1;
        Ok(end)
    });
    let has_code_points =
        || memchr::memchr_iter(b'\\', known).any(|escape| known.get(escape + 1) == Some(&b'u'));
    if walked != Ok(known.len()) || has_code_points() || json::sound(known).is_none() {
        return None;
    }
    let (mut left, mut at) = (count, skip_space(bytes, (bytes.get(at)? == &b'{').then_some(at + 1)?));
    while left > 0 {
        let rest = &bytes[at..];
        let place = members[..left].iter().position(|(name, _)| rest.starts_with(&known[name.clone()]))?;
        let (name, value) = members[place].clone();
        members.swap(place, left - 1);
        left -= 1;
        let colon = skip_space(bytes, at + name.len());
        let start = skip_space(bytes, (bytes.get(colon)? == &b':').then_some(colon + 1)?);
        let value = &known[value];
        at = skip_space(bytes, bytes.get(start..)?.starts_with(value).then_some(start + value.len())?);
        // What does not close by itself ends here, too.
        let expected = if left > 0 { b',' } else { b'}' };
        at = (bytes.get(at)? == &expected).then_some(at + 1)?;
        if left > 0 {
            at = skip_space(bytes, at);
        }
    }
    (count > 0).then_some(at)
}

/// Where everything inside a value stands, for a value that others are compared with often.
#[derive(Debug)]
pub struct Tree {
    /// Each before what it holds.
    nodes: Box<[Node]>,
}

#[derive(Debug)]
struct Node {
    /// Its name in the object that holds it; empty in an array.
    key: Part,
    value: Part,
    /// The first node that is not inside this one.
    next: u32,
}

/// A span within a value that is short enough for this.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u32,
    end: u32,
}

impl Part {
    fn of(span: &Span) -> Part {
        Part { start: span.start as u32, end: span.end as u32 }
    }

    fn span(self) -> Span {
        self.start as usize..self.end as usize
    }
}

impl Tree {
    /// `None` for a value that is too large or nests too deep, and for what is none.
    pub fn of(value: &[u8]) -> Option<Tree> {
        if value.len() > BYTES_MAX {
            return None;
        }
        let mut nodes = Vec::with_capacity(value.len() / 16 + 1);
        add(&mut nodes, value, 0..0, 0, 0).ok()?;
        Some(Tree { nodes: nodes.into() })
    }

    /// Whether `value` means what `sound` means, whose tree this is.
    pub fn is_respelt(&self, sound: &[u8], value: &[u8]) -> bool {
        self.respelt_end(sound, value, 0).is_some()
    }

    /// The same of the value that starts at `at` of these bytes, and where it ends.
    pub fn respelt_end(&self, sound: &[u8], bytes: &[u8], at: usize) -> Option<usize> {
        Pair { nodes: &self.nodes, sound, value: bytes }.same(0, at)
    }

    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Tree>() + size_of_val(&*self.nodes)
    }
}

fn add(
    nodes: &mut Vec<Node>,
    bytes: &[u8],
    key: Span,
    start: usize,
    depth: usize,
) -> Result<usize, Malformed> {
    let place = nodes.len();
    nodes.push(Node { key: Part::of(&key), value: Part::of(&(start..start)), next: 0 });
    let end = match bytes.get(start) {
        Some(b'{' | b'[') if depth == DEPTH_MAX => Err(Malformed::TooDeep),
        Some(b'{') => walk_object(bytes, start, |key, start| add(nodes, bytes, key, start, depth + 1)),
        Some(b'[') => walk_array(bytes, start, |start| add(nodes, bytes, 0..0, start, depth + 1)),
        _ => value_end(bytes, start),
    }?;
    let next = nodes.len() as u32;
    let node = &mut nodes[place];
    (node.value.end, node.next) = (end as u32, next);
    Ok(end)
}

struct Pair<'a> {
    nodes: &'a [Node],
    sound: &'a [u8],
    value: &'a [u8],
}

impl<'a> Pair<'a> {
    /// Where the value that starts at `at` ends, if it means what the node means.
    fn same(&self, node: usize, at: usize) -> Option<usize> {
        let known = &self.sound[self.nodes[node].value.span()];
        let (first, rest) = (known.first()?, self.value.get(at..)?);
        let closes = matches!(first, b'"' | b'{' | b'[');
        // What has an end of its own ends where the equal bytes end.
        if closes && rest.starts_with(known) {
            return Some(at + known.len());
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
        let (mut next, last) = (node + 1, self.nodes[node].next as usize);
        let end = walk_array(self.value, at, |start| {
            let end = (next < last).then(|| self.same(next, start)).flatten();
            next = self.nodes.get(next).map_or(last, |node| node.next as usize);
            end.ok_or(Malformed::At(start))
        });
        end.ok().filter(|_| next == last)
    }

    /// A sound object has each name once, so a name that comes twice finds nothing the second time.
    fn object(&self, node: usize, at: usize) -> Option<usize> {
        let value = self.value;
        // The members that were found, one bit each.
        let mut found = 0_u64;
        let mut at = skip_space(value, at + 1);
        while value.get(at)? != &b'}' {
            let (number, member, key_end) = self.member(node, found, at)?;
            found |= 1 << number;
            let colon = skip_space(value, key_end);
            let start = (value.get(colon)? == &b':').then(|| skip_space(value, colon + 1))?;
            at = skip_space(value, self.same(member, start)?);
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
        (found.count_ones() as usize == self.members(node).count()).then_some(at + 1)
    }

    /// The number of the member whose name stands at `at`, itself, and where that name ends.
    fn member(&self, object: usize, found: u64, at: usize) -> Option<(u32, usize, usize)> {
        let rest = &self.value[at..];
        let unfound =
            || (0..MEMBERS_MAX).zip(self.members(object)).filter(|(number, _)| found >> number & 1 == 0);
        let name = |member: usize| &self.sound[self.nodes[member].key.span()];
        // Most names differ in their first letter.
        let is_next = |name: &[u8]| name.get(1) == rest.get(1) && rest.starts_with(name);
        if let Some((number, member)) = unfound().find(|(_, member)| is_next(name(*member))) {
            return Some((number, member, at + name(member).len()));
        }
        let end = string_end(self.value, at).ok()?;
        let (number, member) = unfound().find(|(_, member)| self.same_scalar(name(*member), at..end))?;
        Some((number, member, end))
    }

    fn members(&self, object: usize) -> impl Iterator<Item = usize> + use<'a> {
        let nodes = self.nodes;
        let last = nodes[object].next as usize;
        let next = move |member: &usize| Some(nodes[*member].next as usize).filter(|next| *next < last);
        std::iter::successors(Some(object + 1).filter(|first| *first < last), next)
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
            let end = reordered_end(one.as_bytes(), two.as_bytes(), 0);
            if end == Some(two.len()) {
                prop_assert!(meaning(&one).is_some() && meaning(&one) == meaning(&two));
            }
            prop_assert!(end.is_none_or(|end| value_end(two.as_bytes(), 0) == Ok(end)));
        }
    }
}
