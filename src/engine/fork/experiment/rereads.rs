//! What the children of a tool read again of what their parent had read.

/// Children that must have come before their habit counts.
const CHILDREN_MIN: f64 = 4.0;
/// Beyond this many children, older ones count half.
const CHILDREN_MAX: f64 = 64.0;

/// The tokens that one arm's children read again: in all, and per child.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rereads {
    pub tokens: u64,
    pub turns: u64,
    recent: RecentRereads,
}

/// Sums over children; the older count less.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
struct RecentRereads {
    children: f64,
    tokens: f64,
    turns: f64,
}

/// The tokens that a child reads again in its life, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RereadsPerChild {
    pub tokens: f64,
    /// Turns that bring such results.
    pub turns: f64,
}

impl Rereads {
    /// Takes in a turn of a child. `tokens`: of the results that it was given and that its parent had read, if any were.
    pub fn add(&mut self, is_first: bool, tokens: Option<u64>) {
        let (is_reread, tokens) = (tokens.is_some(), tokens.unwrap_or(0));
        self.tokens = self.tokens.saturating_add(tokens);
        self.turns = self.turns.saturating_add(u64::from(is_reread));
        let RecentRereads { children, tokens: sum, turns } = &mut self.recent;
        if is_first && *children >= CHILDREN_MAX {
            [&mut *children, &mut *sum, &mut *turns].into_iter().for_each(|sum| *sum /= 2.0);
        }
        *children += f64::from(u8::from(is_first));
        *sum += tokens as f64;
        *turns += f64::from(u8::from(is_reread));
    }

    /// The mean of the children of these arms; zero while too few have come.
    pub fn per_child<'r>(arms: impl IntoIterator<Item = &'r Rereads>) -> RereadsPerChild {
        let mut all = RecentRereads::default();
        for Rereads { recent, .. } in arms {
            all.children += recent.children;
            all.tokens += recent.tokens;
            all.turns += recent.turns;
        }
        if all.children < CHILDREN_MIN {
            return RereadsPerChild::default();
        }
        RereadsPerChild { tokens: all.tokens / all.children, turns: all.turns / all.children }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children of two turns, of which the second reads so much again.
    fn children(count: usize, tokens: u64) -> Rereads {
        let mut rereads = Rereads::default();
        for _ in 0..count {
            rereads.add(true, None);
            rereads.add(false, (tokens > 0).then_some(tokens));
        }
        rereads
    }

    #[test]
    fn three_children_are_no_habit_and_four_are() {
        assert_eq!(Rereads::per_child([&children(3, 100)]), RereadsPerChild::default());
        assert_eq!(Rereads::per_child([&children(4, 100)]), RereadsPerChild { tokens: 100.0, turns: 1.0 });
        let both = Rereads::per_child([&children(2, 100), &children(2, 0)]);
        assert_eq!(both, RereadsPerChild { tokens: 50.0, turns: 0.5 });
    }

    #[test]
    fn older_children_count_less_and_sums_keep_all() {
        let mut rereads = children(64, 100);
        for _ in 0..32 {
            rereads.add(true, None);
        }
        let mean = Rereads::per_child([&rereads]);
        assert_eq!(mean, RereadsPerChild { tokens: 50.0, turns: 0.5 });
        assert_eq!((rereads.tokens, rereads.turns), (6_400, 64));
    }
}
