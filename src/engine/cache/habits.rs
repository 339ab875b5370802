//! Habits of a tenant's conversations: whether they go on, and whether others follow with the same tools and system
//! prompt. A breakpoint that is never read costs a quarter of what it writes, so each has to be worth it.
//!
//! Each question is a [`Tally`] of entries that were written, or would have been, beside those that were read while they
//! lived. It counts by time: however many conversations begin, none of them is forgotten before its time.

use serde::{Deserialize, Serialize};

use super::breakpoints::StaticEnds;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Reading;
use crate::engine::words::{DigestMap, Layer, Moment};

/// Entries that may be written in vain before any was read: those of a tenant's first conversations with a tool set.
const BETS: u64 = 8;
/// One entry that is read pays for this many that are not.
pub const READ_COVERS: u32 = 4;
/// Counts older than twice this are forgotten, once enough have come since that they are no longer needed.
const GENERATION_MS: u64 = 15 * 60 * 1000;
const GENERATION_MIN: u64 = 2 * BETS;
/// Tool sets whose conversations are counted.
const TOOL_SETS_MAX: usize = 32;

/// A count of the breakpoints of a tenant's conversations that are read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReadHabits {
    tool_sets: DigestMap<PrefixHash, ToolSet>,
    /// Of each tool set the first conversation: what new tools bring cannot be known otherwise.
    first_of_tools: Tally,
}

/// The habits of conversations with the same tools.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ToolSet {
    newest: Moment,
    /// Conversations that began, and those that went on.
    starts: Tally,
    /// Later turns that found nothing of their conversation, and those of them that were followed in time.
    #[serde(default)]
    resumes: Tally,
    tools: EndHabits,
    system: EndHabits,
}

/// A count of the ends of a layer that other conversations would read, if they were written by the first of those that
/// come within its life, or by the second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct EndHabits {
    by_first: Tally,
    by_second: Tally,
}

/// Entries that were written, or would have been, and those that were read.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Tally {
    young: GenerationCounts,
    old: GenerationCounts,
    /// The moment when the young ones began.
    since: Moment,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct GenerationCounts {
    written: u64,
    read: u64,
}

impl ReadHabits {
    /// A conversation begins with these tools. What has none is taken to end, whatever others did.
    pub fn started(&mut self, request: &Reading, now: Moment) {
        if request.anatomy().tools == 0 {
            return;
        }
        let tool_set = self.tool_set(request, now);
        let is_first = tool_set.starts.is_empty();
        tool_set.starts.written(now);
        if is_first {
            self.first_of_tools.written(now);
        }
    }

    /// Nothing came of a conversation that began.
    pub fn withdrawn(&mut self, request: &Reading) {
        let Some(tool_set) = self.tool_sets.get_mut(&tools_of(request)) else { return };
        tool_set.starts.withdrawn();
        if tool_set.starts.is_empty() {
            self.first_of_tools.withdrawn();
        }
    }

    /// A conversation went on while what its first request wrote was there to be read.
    pub fn continued(&mut self, first: &Reading) {
        let Some(tool_set) = self.tool_sets.get_mut(&tools_of(first)) else { return };
        tool_set.starts.read();
        if tool_set.starts.total().written == 1 {
            self.first_of_tools.read();
        }
    }

    /// Returns true if a conversation that begins so will hardly go on in time, as far as was seen.
    pub fn seldom_continues(&self, request: &Reading) -> bool {
        match self.tool_sets.get(&tools_of(request)) {
            Some(tool_set) if !tool_set.starts.is_empty() => !tool_set.starts.pays(),
            _ => !self.first_of_tools.pays(),
        }
    }

    /// A later turn found nothing of its conversation: what it writes is a bet again.
    pub fn resumed(&mut self, request: &Reading, now: Moment) {
        self.tool_set(request, now).resumes.written(now);
    }

    /// Nothing came of such a turn.
    pub fn resumed_in_vain(&mut self, request: &Reading) {
        if let Some(tool_set) = self.tool_sets.get_mut(&tools_of(request)) {
            tool_set.resumes.withdrawn();
        }
    }

    /// Such a turn was followed by one that reads what it wrote, or would have written.
    pub fn resumed_for_long(&mut self, resumed: &Reading) {
        if let Some(tool_set) = self.tool_sets.get_mut(&tools_of(resumed)) {
            tool_set.resumes.read();
        }
    }

    /// Returns true if such turns are hardly ever followed in time, as far as was seen.
    pub fn seldom_resumes_for_long(&self, request: &Reading) -> bool {
        self.tool_sets.get(&tools_of(request)).is_some_and(|tool_set| !tool_set.resumes.pays())
    }

    /// A conversation began with the tools and system prompt of a request. `streak`: so many with the same have come by
    /// now, each within the life of what the one before could have written.
    pub fn shared(&mut self, request: &Reading, layer: Layer, streak: u32, now: Moment) {
        let Some(end) = self.tool_set(request, now).end_mut(layer) else { return };
        match streak {
            0 | 1 => end.by_first.written(now),
            2 => {
                end.by_first.read();
                end.by_second.written(now);
            }
            _ => {
                end.by_first.read();
                end.by_second.read();
            }
        }
    }

    /// Returns which ends other conversations will read. `follows`: one with the same end has come a short while ago.
    /// `has_siblings`: others with the same tools come with this one.
    pub fn read_by_others(
        &self,
        request: &Reading,
        has_siblings: bool,
        follows: impl Fn(Layer) -> bool,
    ) -> StaticEnds {
        let known = self.tool_sets.get(&tools_of(request));
        let is_read = |layer| {
            let end = known.and_then(|tool_set| tool_set.end(layer));
            let pays = |tally: fn(&EndHabits) -> &Tally| end.is_none_or(|end| tally(end).pays());
            (has_siblings && pays(|end| &end.by_first)) || (follows(layer) && pays(|end| &end.by_second))
        };
        StaticEnds { tools: is_read(Layer::Tools), system: is_read(Layer::System) }
    }

    /// Takes over what another process has seen, where that is more.
    pub fn restore(&mut self, saved: ReadHabits) {
        if saved.first_of_tools.total().written > self.first_of_tools.total().written {
            self.first_of_tools = saved.first_of_tools;
        }
        for (tools, tool_set) in saved.tool_sets {
            let known = self.tool_sets.get(&tools).map(|known| known.starts.total().written);
            let has_room = known.is_some() || self.tool_sets.len() < TOOL_SETS_MAX;
            if has_room && known.is_none_or(|known| tool_set.starts.total().written > known) {
                self.tool_sets.insert(tools, tool_set);
            }
        }
    }

    fn tool_set(&mut self, request: &Reading, now: Moment) -> &mut ToolSet {
        let tools = tools_of(request);
        if !self.tool_sets.contains_key(&tools) && self.tool_sets.len() >= TOOL_SETS_MAX {
            let oldest = self.tool_sets.iter().min_by_key(|(_, set)| set.newest).map(|(tools, _)| *tools);
            oldest.map(|tools| self.tool_sets.remove(&tools));
        }
        let tool_set = self.tool_sets.entry(tools).or_default();
        tool_set.newest = now;
        tool_set
    }
}

impl ToolSet {
    fn end(&self, layer: Layer) -> Option<&EndHabits> {
        match layer {
            Layer::Tools => Some(&self.tools),
            Layer::System => Some(&self.system),
            Layer::Model | Layer::Messages => None,
        }
    }

    fn end_mut(&mut self, layer: Layer) -> Option<&mut EndHabits> {
        match layer {
            Layer::Tools => Some(&mut self.tools),
            Layer::System => Some(&mut self.system),
            Layer::Model | Layer::Messages => None,
        }
    }
}

impl Tally {
    fn written(&mut self, now: Moment) {
        let is_over = now.since(self.since) >= GENERATION_MS && self.young.written >= GENERATION_MIN;
        if is_over {
            self.old = std::mem::take(&mut self.young);
        }
        if is_over || self.is_empty() {
            self.since = now;
        }
        self.young.written = self.young.written.saturating_add(1);
    }

    fn withdrawn(&mut self) {
        self.young.written = self.young.written.saturating_sub(1);
    }

    fn read(&mut self) {
        self.young.read = self.young.read.saturating_add(1);
    }

    fn total(&self) -> GenerationCounts {
        GenerationCounts {
            written: self.young.written.saturating_add(self.old.written),
            read: self.young.read.saturating_add(self.old.read),
        }
    }

    fn is_empty(&self) -> bool {
        self.total().written == 0
    }

    /// Returns true if one more entry is worth writing: what was read so far covers it, or it is one of the first.
    fn pays(&self) -> bool {
        let GenerationCounts { written, read } = self.total();
        written < u64::from(READ_COVERS).saturating_mul(read).saturating_add(BETS)
    }
}

/// The model and the tools.
fn tools_of(request: &Reading) -> PrefixHash {
    request.chain().layer(request.anatomy(), Layer::Tools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cache::prefixes::Prefixes;
    use crate::engine::request::prefix::Attribution;
    use crate::engine::request::recall::{Nothing, Remembered};

    fn request(tool: &str, system: &str) -> Remembered {
        let body = format!(
            r#"{{"model":"m","tools":[{{"name":"{tool}"}}],"system":"{system}","messages":[{{"role":"user","content":"q"}}]}}"#
        );
        Remembered::read(body.into(), &Nothing, Attribution::Counted).unwrap()
    }

    /// The number of conversations that are marked, of so many which begin so far apart and never go on.
    fn marked(habits: &mut ReadHabits, count: u64, apart_ms: u64, body: impl Fn(u64) -> Remembered) -> u64 {
        let mut marked = 0;
        for number in 0..count {
            let body = body(number);
            marked += u64::from(!habits.seldom_continues(&body));
            habits.started(&body, Moment(number * apart_ms));
        }
        marked
    }

    #[test]
    fn conversations_that_nobody_continues_are_bets_for_the_first_of_them() {
        for apart_ms in [0, 1, 100, 5_000, 60_000, 6 * 60_000, 60 * 60_000] {
            let mut habits = ReadHabits::default();
            let all = marked(&mut habits, 10_000, apart_ms, |_| request("a", "s"));
            assert_eq!(all, BETS, "{apart_ms} ms apart");
        }
    }

    #[test]
    fn tools_that_are_new_each_time_are_bets_for_the_first_of_them() {
        let mut habits = ReadHabits::default();
        let all = marked(&mut habits, 500, 1_000, |number| request(&format!("t{number}"), "s"));
        assert_eq!(all, BETS);
        assert!(habits.tool_sets.len() <= TOOL_SETS_MAX);
    }

    #[test]
    fn one_that_goes_on_pays_for_some_that_do_not() {
        let (body, mut habits) = (request("a", "s"), ReadHabits::default());
        for _ in 0..BETS {
            habits.started(&body, Moment(0));
        }
        assert!(habits.seldom_continues(&body));
        habits.continued(&body);
        for _ in 0..READ_COVERS {
            assert!(!habits.seldom_continues(&body));
            habits.started(&body, Moment(0));
        }
        assert!(habits.seldom_continues(&body));
        habits.withdrawn(&body);
        assert!(!habits.seldom_continues(&body), "nothing came of one");
    }

    #[test]
    fn what_was_long_ago_is_forgotten_once_enough_came_since() {
        let (body, mut habits) = (request("a", "s"), ReadHabits::default());
        marked(&mut habits, 1_000, 10, |_| request("a", "s"));
        for round in 1..=3 {
            for _ in 0..GENERATION_MIN {
                habits.started(&body, Moment(round * GENERATION_MS + 10_000));
                habits.continued(&body);
            }
        }
        assert!(!habits.seldom_continues(&body), "they go on now");
    }

    #[test]
    fn turns_that_find_nothing_are_bets_until_they_are_followed_in_time() {
        let (body, mut habits) = (request("a", "s"), ReadHabits::default());
        let mut marked = 0;
        for _ in 0..100 {
            marked += u64::from(!habits.seldom_resumes_for_long(&body));
            habits.resumed(&body, Moment(0));
        }
        assert_eq!(marked, BETS);
        // What would have been read counts, too.
        (0..100 / READ_COVERS).for_each(|_| habits.resumed_for_long(&body));
        assert!(!habits.seldom_resumes_for_long(&body) && !habits.seldom_continues(&body));
        (0..BETS).for_each(|_| habits.resumed(&body, Moment(0)));
        assert!(habits.seldom_resumes_for_long(&body));
        habits.resumed_in_vain(&body);
        assert!(!habits.seldom_resumes_for_long(&body), "nothing came of one");
    }

    #[test]
    fn what_has_no_tools_is_not_counted() {
        let body = r#"{"model":"m","system":"s","messages":[{"role":"user","content":"one"}]}"#;
        let body = Remembered::read(body.into(), &Nothing, Attribution::Counted).unwrap();
        let mut habits = ReadHabits::default();
        for _ in 0..2 * BETS {
            habits.started(&body, Moment(0));
        }
        assert!(habits.tool_sets.is_empty() && !habits.seldom_continues(&body));
    }

    #[test]
    fn personas_of_their_own_leave_the_end_of_the_tools() {
        let (mut habits, mut tools, mut system) =
            (ReadHabits::default(), Prefixes::default(), Prefixes::default());
        let mut last = StaticEnds::default();
        for number in 0..2 * BETS {
            let (body, now) = (request("a", &format!("agent {number}")), Moment(number * 1_000));
            let [of_tools, of_system] =
                [Layer::Tools, Layer::System].map(|layer| body.chain().layer(body.anatomy(), layer));
            let follows = |layer| match layer {
                Layer::Tools => tools.is_live(&of_tools, now),
                _ => system.is_live(&of_system, now),
            };
            assert_eq!(
                habits.read_by_others(&body, false, follows),
                StaticEnds { tools: number > 0, system: false }
            );
            last = habits.read_by_others(&body, true, follows);
            let (_, streak) = tools.see(of_tools, true, now, now);
            habits.shared(&body, Layer::Tools, streak, now);
            let (_, streak) = system.see(of_system, true, now, now);
            habits.shared(&body, Layer::System, streak, now);
        }
        assert_eq!(last, StaticEnds { tools: true, system: false }, "for siblings too");
    }
}
