//! Who sent a request and how much may be done to it, as far as its headers tell.

use http::{HeaderMap, HeaderName};

use super::account::Payer;
use super::encoded::Coding;
use crate::config::{Config, Mode, OAuth};
use crate::engine::family::claims::Claims;
use crate::engine::family::recent::Hint;
use crate::engine::request::identify::{self, Sender, TenantRule};
use crate::engine::words::Reason;

static MODE: HeaderName = HeaderName::from_static("x-forkpoint-mode");

/// The headers of a request, read before its body comes.
pub struct Caller {
    pub sender: Sender,
    /// Whom it is charged to: nobody, until its tenant was looked for.
    pub payer: Payer,
    pub modes: Modes,
    /// Its claims about its family.
    pub claims: Claims,
    /// The betas that it asks for, as one list.
    pub betas: String,
    /// The version of the API that it asks for.
    pub version: String,
    /// The codings of its body; none if one of them is not known.
    pub codings: Option<Vec<Coding>>,
    /// Why the request is only observed, if it is.
    pub observed: Option<Reason>,
}

/// How much may be done to a request.
#[derive(Clone, Copy, Debug)]
pub struct Modes {
    /// The most that the request allows, if it says so.
    pub asked: Option<Mode>,
    /// The configured mode, or a lower one that the request asks for.
    pub in_force: Mode,
}

impl Caller {
    /// Names whoever sent these headers.
    pub fn of(headers: &HeaderMap, config: &Config) -> Caller {
        let identity = &config.identity;
        let rule = TenantRule { pepper: identity.pepper.reveal(), headers: &identity.tenant_headers };
        let sender = identify::sender(headers, rule, &identity.clients);
        let mut caller = Caller {
            sender,
            claims: Claims::of(headers),
            betas: identify::betas(headers).collect::<Vec<_>>().join(","),
            version: identify::version(headers).to_owned(),
            codings: Coding::all(headers),
            ..Caller::unnamed(Modes::of(headers, config))
        };
        caller.observed = caller.observed_for(headers, identity.oauth);
        caller
    }

    /// A caller of whom nothing is known but the mode.
    pub fn unnamed(modes: Modes) -> Caller {
        Caller {
            sender: Sender::default(),
            payer: Payer::NOBODY,
            modes,
            claims: Claims::default(),
            betas: String::new(),
            version: String::new(),
            codings: None,
            observed: None,
        }
    }

    /// The session and the agent that are named, if a session is.
    pub fn hint(&self) -> Option<Hint> {
        let Sender { session, agent, .. } = self.sender;
        session.map(|session| Hint { session: session.hints, agent })
    }

    /// The family of the client, once it is known.
    pub fn client(&self) -> Option<&str> {
        Some(&*self.sender.client).filter(|client| !client.is_empty())
    }

    fn observed_for(&self, headers: &HeaderMap, oauth: OAuth) -> Option<Reason> {
        match self.modes.in_force {
            _ if self.codings.is_none() => Some(Reason::ContentEncoding),
            _ if identify::is_signed(headers) => Some(Reason::Signed),
            _ if self.sender.tenant.is_none() => Some(Reason::NoCredential),
            _ if oauth == OAuth::Observe && identify::is_oauth(headers) => Some(Reason::OAuth),
            Mode::Observe => Some(Reason::Observe),
            Mode::Align | Mode::Fork => None,
        }
    }
}

impl Modes {
    pub fn of(headers: &HeaderMap, config: &Config) -> Modes {
        let asked = headers.get(&MODE).and_then(|value| value.to_str().ok());
        let asked = asked.and_then(Mode::named);
        Modes { asked, in_force: asked.unwrap_or(Mode::Fork).min(config.server.mode) }
    }

    /// Returns true unless the request asks for less than `fork`. Whoever has a prefix keeps it when the configuration
    /// says otherwise later: without it the model would refuse what it thought itself.
    pub fn keeps_prefix(self) -> bool {
        self.asked.is_none_or(|asked| asked == Mode::Fork)
    }
}
