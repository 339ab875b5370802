//! How a request came through the gate.

/// Every request that enters has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All it writes is small or warm already: the gate was not asked.
    Unneeded,
    /// Nobody was writing its entries: it went at once, and others may wait for it.
    Led,
    /// It streams and met only leaders that do not: it went at once, and is waited for instead of them.
    Overtook,
    /// It waited, and its leader's answer began.
    Released,
    /// It waited, its leader came to nothing, and it leads now.
    Succeeded,
    /// Its leader does not stream and has had `gate.json_hold_ms` or what was learned since: the entry is
    /// presumed warm.
    Presumed,
    /// Its deadline came before its leader's answer began.
    TimedOut,
    /// Its leader does not stream, and waiting for such leaders is given up for this tenant and model.
    GivenUp,
    /// Answers to so large a write begin later than anybody would wait: it went at once. The gate was not asked.
    TooSlow,
    /// Too many wait already: it went at once.
    Full,
    /// Its client left while it waited. Told by whoever drops the wait, for nobody is left to be let go.
    ClientLeft,
}

impl Outcome {
    pub const ALL: [Outcome; 11] = [
        Outcome::Unneeded,
        Outcome::Led,
        Outcome::Overtook,
        Outcome::Released,
        Outcome::Succeeded,
        Outcome::Presumed,
        Outcome::TimedOut,
        Outcome::GivenUp,
        Outcome::TooSlow,
        Outcome::Full,
        Outcome::ClientLeft,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Unneeded => "unneeded",
            Outcome::Led => "led",
            Outcome::Overtook => "overtook",
            Outcome::Released => "released",
            Outcome::Succeeded => "succeeded",
            Outcome::Presumed => "presumed",
            Outcome::TimedOut => "timed_out",
            Outcome::GivenUp => "json_given_up",
            Outcome::TooSlow => "too_slow",
            Outcome::Full => "full",
            Outcome::ClientLeft => "client_left",
        }
    }
}
