//! Random clients of one tenant: a seed gives a point, and a point gives a series of requests.

use std::fmt;

use crate::workload::dice::Dice;

/// Seeds from here on give points with what the others lack: children of up to 64 turns, children that read again what their
/// parent has read, requests that are refused with a 529, and clients that leave and ask again.
pub const FURTHER: u64 = 1_000_000;
/// Prompt tokens of one play of a series, about: larger ones are played with shorter prompts.
const TOKENS_MAX: usize = 160_000;
/// Requests of one play of a series, about.
const REQUESTS_MAX: usize = 80;
const MODELS: [&str; 6] = [
    "claude-opus-5-5",
    "claude-sonnet-4-6",
    "claude-fable-5-1",
    "claude-opus-4-8",
    "claude-sonnet-5",
    // Without a price.
    "claude-mythos-preview",
];

#[derive(Clone, Debug)]
pub struct Point {
    pub seed: u64,
    pub model: &'static str,
    pub clients: Vec<Client>,
    pub to_begin_ms: u64,
    pub per_token_us: u64,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub shape: Shape,
    pub marks: Marks,
    pub tier: Tier,
    pub child_tier: Tier,
    pub personas: Personas,
    pub string_system: bool,
    pub streams: bool,
    pub has_session: bool,
    pub children_spawn: bool,
    pub repeats_directives: bool,
    pub tools_reversed: bool,
    /// Children read again what their parent has read.
    pub rereads: bool,
    /// Some requests are refused, or left before their answer has ended; they are sent again.
    pub is_refused: bool,
    pub leaves: bool,
    pub tool_tokens: usize,
    pub parent_tokens: usize,
    pub persona_tokens: usize,
    pub context_tokens: usize,
    pub directive_tokens: usize,
    pub result_tokens: usize,
    /// The turn whose results bring an image.
    pub image_at: Option<usize>,
    /// When a client starts after the one before it.
    pub start_ms: u64,
    /// Between two that start of their own accord.
    pub arrival_ms: u64,
    /// Between an answer and the next turn.
    pub pause_ms: u64,
    pub long_pause_at: Option<usize>,
    pub long_pause_ms: u64,
    /// Between two fan-outs.
    pub row_pause_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Conversations {
        count: usize,
        turns: usize,
        /// The turns of the first one.
        longest: usize,
        one_after_another: bool,
    },
    FanOuts {
        rows: usize,
        children: usize,
        turns: usize,
        concurrent: bool,
        /// Each fan-out has a parent of its own.
        fresh_parents: bool,
        /// Children come before the end of their parent's answer.
        eager: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    None,
    LastMessage,
    SystemOnly,
    SystemAndLast,
    Careful,
    Automatic,
    LastToolAndThreeMessages,
    LastTwoTurns,
}

impl Marks {
    const ALL: [Marks; 8] = [
        Marks::None,
        Marks::LastMessage,
        Marks::SystemOnly,
        Marks::SystemAndLast,
        Marks::Careful,
        Marks::Automatic,
        Marks::LastToolAndThreeMessages,
        Marks::LastTwoTurns,
    ];

    /// Returns true if the end of every prompt is marked.
    pub fn marks_end(self) -> bool {
        !matches!(self, Marks::None | Marks::SystemOnly)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Minutes,
    Hour,
    /// An hour for tools and system, minutes for messages.
    Mixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personas {
    Own,
    Shared,
    /// The system prompt of the parent.
    Parents,
}

impl Point {
    pub fn of(seed: u64) -> Point {
        let mut dice = Dice::new(seed);
        let clients = 1 + [0, 0, 0, 1, 1, 2][dice.below(6)];
        let mut point = Point {
            seed,
            model: MODELS[dice.below(MODELS.len())],
            clients: Vec::new(),
            to_begin_ms: pick(&mut dice, 300, 2_000) as u64,
            per_token_us: pick(&mut dice, 20, 60) as u64,
        };
        for number in 0..clients {
            let mut client = Client::of(&mut dice, clients, number);
            if seed >= FURTHER {
                client.go_further(&mut dice, clients);
            }
            point.clients.push(client);
        }
        point
    }

    /// Returns true if children read again: what they would not do on their parent's prompt, they do here.
    pub fn rereads(&self) -> bool {
        self.clients.iter().any(|client| client.rereads)
    }

    /// Returns true if the series is long enough for the bounds on what it costs.
    pub fn is_long(&self) -> bool {
        let (mut conversations, mut fan_outs) = (0, 0);
        for client in &self.clients {
            match client.shape {
                Shape::Conversations { count, .. } => conversations += count,
                Shape::FanOuts { rows, .. } => fan_outs += rows,
            }
        }
        conversations >= 8 || fan_outs >= 3
    }
}

impl Client {
    fn of(dice: &mut Dice, clients: usize, number: usize) -> Client {
        let shape = Shape::of(dice, clients);
        let marks = Marks::ALL[dice.below(Marks::ALL.len())];
        let tier = [Tier::Minutes, Tier::Minutes, Tier::Minutes, Tier::Hour, Tier::Mixed][dice.below(5)];
        let child_tier = if dice.once_in(6) { Tier::Hour } else { tier };
        let personas = [Personas::Own, Personas::Shared, Personas::Parents][dice.below(3)];
        let string_system = dice.once_in(3);
        let mut streams = !dice.once_in(5);
        if matches!(shape, Shape::FanOuts { eager: true, .. }) {
            streams = true;
        }
        let has_session = dice.once_in(2);
        let children_spawn = dice.once_in(2);
        let repeats_directives = dice.once_in(6);
        let tools_reversed = number > 0 && dice.once_in(2);
        let whole = pick(dice, 2_500, 40_000);
        let tool_tokens = [0, whole / 10, whole / 4, whole / 2][dice.below(4)];
        let parent_tokens = pick(dice, 200, 4_000);
        let persona_tokens = pick(dice, 100, 6_000);
        let context_tokens = whole.saturating_sub(tool_tokens + parent_tokens).max(200);
        let result_tokens = pick(dice, 40, 1_200);
        let image_at = dice.once_in(6).then(|| 1 + dice.below(3));
        let long_pause_at = dice.once_in(4).then(|| 1 + dice.below(3));
        let mut client = Client {
            shape,
            marks,
            tier,
            child_tier,
            personas,
            string_system,
            streams,
            has_session,
            children_spawn,
            repeats_directives,
            tools_reversed,
            rereads: false,
            is_refused: false,
            leaves: false,
            tool_tokens,
            parent_tokens,
            persona_tokens,
            context_tokens,
            directive_tokens: pick(dice, 30, 300),
            result_tokens,
            image_at,
            start_ms: pick(dice, 100, 60_000) as u64,
            arrival_ms: pick(dice, 2, 120_000) as u64,
            pause_ms: pick(dice, 20, 60_000) as u64,
            long_pause_at,
            long_pause_ms: pick(dice, 310_000, 900_000) as u64,
            row_pause_ms: pick(dice, 50, 1_000_000) as u64,
        };
        // Siblings that come together are the rule, and so are turns at once.
        if matches!(shape, Shape::FanOuts { concurrent: true, .. }) {
            client.arrival_ms = pick(dice, 2, 2_000) as u64;
        }
        if dice.once_in(2) {
            client.pause_ms = pick(dice, 20, 2_000) as u64;
        }
        client.fit(clients);
        client
    }

    /// What only seeds from [`FURTHER`] on have.
    fn go_further(&mut self, dice: &mut Dice, clients: usize) {
        self.is_refused = dice.once_in(2);
        self.leaves = dice.once_in(2);
        let (is_long, rereads) = (dice.once_in(3), dice.once_in(2));
        let Shape::FanOuts { rows, children, turns, .. } = &mut self.shape else { return };
        self.rereads = rereads;
        if is_long {
            *rows = [1, 3][dice.below(2)];
            *children = 2;
            *turns = pick(dice, 24, if *rows == 1 { 64 } else { 40 });
        }
        self.fit(clients);
    }

    /// Makes prompts shorter where the series would take too long.
    fn fit(&mut self, clients: usize) {
        let (requests, tokens) = match self.shape {
            Shape::Conversations { count, turns, longest, .. } => {
                let first = self.tool_tokens + self.persona_tokens + self.context_tokens;
                let turn = |turns: usize| turns * first + turns * turns / 2 * self.result_tokens;
                ((count - 1) * turns + longest, (count - 1) * turn(turns) + turn(longest))
            }
            Shape::FanOuts { rows, children, turns, .. } => {
                let parent = self.tool_tokens + self.parent_tokens + self.context_tokens;
                let child = parent + self.persona_tokens;
                let lives = turns * child + turns * turns / 2 * self.result_tokens;
                (rows * (children * turns + 1), rows * (children * lives + parent))
            }
        };
        let over = (tokens * clients) as f64 / TOKENS_MAX as f64;
        if over > 1.0 {
            let scaled =
                |tokens: usize, least: usize| ((tokens as f64 / over) as usize).max(least.min(tokens));
            self.tool_tokens = scaled(self.tool_tokens, 300);
            self.parent_tokens = scaled(self.parent_tokens, 100);
            self.persona_tokens = scaled(self.persona_tokens, 100);
            self.context_tokens = scaled(self.context_tokens, 800);
            self.result_tokens = scaled(self.result_tokens, 40);
        }
        debug_assert!(requests <= 4 * REQUESTS_MAX, "{requests} requests");
    }
}

impl Shape {
    fn of(dice: &mut Dice, clients: usize) -> Shape {
        let most = REQUESTS_MAX / clients;
        if dice.once_in(3) {
            let count = pick(dice, 3, 16);
            let turns = pick(dice, 1, (most / count).clamp(1, 12));
            let most_turns = if dice.once_in(4) { 64.min(most) } else { turns };
            let longest = pick(dice, turns, most_turns);
            Shape::Conversations { count, turns, longest, one_after_another: dice.once_in(2) }
        } else {
            let rows = [1, 2, 3, 3, 4, 5][dice.below(6)];
            let children = pick(dice, 2, 8);
            let turns = pick(dice, 1, (most / rows / children).clamp(1, 64));
            let (concurrent, fresh_parents, eager) = (!dice.once_in(3), dice.once_in(3), dice.once_in(3));
            Shape::FanOuts { rows, children, turns, concurrent, fresh_parents, eager }
        }
    }
}

/// A number between two others; as often between 10 and 100 as between 100 and 1,000.
fn pick(dice: &mut Dice, least: usize, most: usize) -> usize {
    const STEPS: usize = 1_000;
    let share = dice.below(STEPS + 1) as f64 / STEPS as f64;
    let log = (least as f64).ln() + share * ((most as f64).ln() - (least as f64).ln());
    (log.exp().round() as usize).clamp(least, most)
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, begins after {} ms and {} µs a token",
            self.model, self.to_begin_ms, self.per_token_us
        )?;
        for client in &self.clients {
            write!(f, "; {client}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::Conversations { count, turns, longest, one_after_another } => {
                write!(f, "{count} conversations of {turns} turns")?;
                if longest != turns {
                    write!(f, ", one of {longest}")?;
                }
                if one_after_another {
                    write!(f, ", one after another")?;
                }
            }
            Shape::FanOuts { rows, children, turns, concurrent, fresh_parents, eager } => {
                write!(f, "{rows} fan-outs of {children} children of {turns} turns")?;
                for (is_so, word) in [
                    (!concurrent, ", one after another"),
                    (fresh_parents, ", parents of their own"),
                    (eager, ", before the parent's end"),
                    (self.children_spawn, ", children may spawn"),
                    (self.repeats_directives, ", equal directives"),
                ] {
                    f.write_str(if is_so { word } else { "" })?;
                }
                write!(f, ", parent {}, directives {}", self.parent_tokens, self.directive_tokens)?;
                write!(f, ", {} ms between them", self.row_pause_ms)?;
                if self.child_tier != self.tier {
                    write!(f, ", children {:?}", self.child_tier)?;
                }
            }
        }
        write!(
            f,
            ", marks {:?} {:?}, personas {:?} {}",
            self.marks, self.tier, self.personas, self.persona_tokens
        )?;
        for (is_so, word) in [
            (self.string_system, " as strings"),
            (!self.streams, ", no streams"),
            (self.has_session, ", sessions"),
            (self.tools_reversed, ", tools reversed"),
            (self.rereads, ", children read again"),
            (self.is_refused, ", some are refused"),
            (self.leaves, ", some leave"),
        ] {
            f.write_str(if is_so { word } else { "" })?;
        }
        write!(
            f,
            ", tools {}, context {}, results {}",
            self.tool_tokens, self.context_tokens, self.result_tokens
        )?;
        write!(f, ", every {} ms, turns after {} ms", self.arrival_ms, self.pause_ms)?;
        if let Some(turn) = self.image_at {
            write!(f, ", an image at turn {turn}")?;
        }
        if let Some(turn) = self.long_pause_at {
            write!(f, ", {} s after turn {turn}", self.long_pause_ms / 1_000)?;
        }
        Ok(())
    }
}
