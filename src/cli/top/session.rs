//! The terminal while `top` has it, and everything that it waits for.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::app::App;
use super::stream::{News, Stream};
use super::{TopArgs, view};
use crate::cli::Failure;
use crate::cli::style::terminal_has_colours;
use crate::config::{self, Overrides};

/// How often requests that run are drawn longer.
const TICK: Duration = Duration::from_millis(250);
/// The longest time in which nobody notices that the program ends.
const KEY_POLL: Duration = Duration::from_millis(200);
/// Keys that were pressed while the program was busy; a person presses no more.
const KEYS_MAX: usize = 64;
/// News that were read and not yet taken. What comes beyond waits in the connection.
const NEWS_MAX: usize = 64;
/// As shells say that a command was ended by a signal: this and its number.
const EXIT_SIGNAL: u8 = 128;

pub fn run(args: TopArgs) -> Result<ExitCode, Failure> {
    let Watched { url, token_file } = Watched::find(args)?;
    require_terminal(&url)?;
    let runtime = crate::cli::runtime()?;
    let outcome = runtime.block_on(watch(url, token_file));
    // The thread that reads keys may still wait for one.
    runtime.shutdown_background();
    outcome
}

/// The admin port to watch.
struct Watched {
    /// Without a slash at its end.
    url: String,
    token_file: Option<PathBuf>,
}

impl Watched {
    fn find(args: TopArgs) -> Result<Watched, Failure> {
        let overrides = Overrides { config: args.config, ..Overrides::default() };
        let config = config::load(&overrides, std::env::vars_os())?.config;
        let token_file = args.token_file.or(config.admin.token_file);
        let url = match args.admin {
            Some(url) if url.contains("://") => url,
            Some(address) => format!("http://{address}"),
            None => {
                let mut address = config.server.admin_listen;
                if address.port() == 0 {
                    let hint = "give the address that `serve` says: --admin http://127.0.0.1:PORT";
                    return Err(Failure::usage("server.admin_listen has port 0, which is any").hint(hint));
                }
                // Who listens everywhere is reached here.
                if address.ip().is_unspecified() {
                    address.set_ip(if address.is_ipv4() {
                        std::net::Ipv4Addr::LOCALHOST.into()
                    } else {
                        std::net::Ipv6Addr::LOCALHOST.into()
                    });
                }
                format!("http://{address}")
            }
        };
        let url = url.trim_end_matches('/').to_owned();
        let is_url = url.parse::<http::Uri>().is_ok_and(|uri| uri.host().is_some());
        if !is_url {
            return Err(Failure::usage(format!("--admin {url:?} is no URL"))
                .hint("give the address of the admin port, such as http://127.0.0.1:8788"));
        }
        Ok(Watched { url, token_file })
    }
}

fn require_terminal(url: &str) -> Result<(), Failure> {
    let missing = match (io::stdin().is_terminal(), io::stdout().is_terminal()) {
        (true, true) => return Ok(()),
        (false, _) => "standard input",
        (true, false) => "standard output",
    };
    Err(Failure::usage(format!("top needs a terminal, and {missing} is none")).hint(format!(
        "use kubectl exec -it, docker exec -it or ssh -t; scripts read {url}/events, for example with curl -N"
    )))
}

async fn watch(url: String, token_file: Option<PathBuf>) -> Result<ExitCode, Failure> {
    let stream = Stream::new(url.clone(), token_file)?;
    // A port that does not answer is said before the terminal is cleared.
    let first = stream.connect(None).await.map_err(|refused| refused.failure(&url))?;
    let (sender, news) = mpsc::channel(NEWS_MAX);
    tokio::spawn(stream.follow(first, sender));
    let mut signals = Signals::new()?;
    let app = App::new(url, terminal_has_colours(), TimeZone::system());
    let terminal = ratatui::try_init().map_err(|error| {
        ratatui::restore();
        Failure::new(format!("cannot use the terminal: {error}"))
    })?;
    let outcome = show(terminal, app, news, &mut signals).await;
    ratatui::restore();
    outcome.map_err(|error| Failure::new(format!("cannot draw: {error}")))
}

async fn show(
    mut terminal: DefaultTerminal,
    mut app: App,
    mut news: mpsc::Receiver<News>,
    signals: &mut Signals,
) -> io::Result<ExitCode> {
    let mut keys = read_keys();
    let mut tick = tokio::time::interval(TICK);
    while !app.has_quit() {
        terminal.draw(|frame| view::draw(frame, &app, now_ms()))?;
        tokio::select! {
            Some(one) = news.recv() => {
                app.take(one, now_ms());
                while let Ok(one) = news.try_recv() {
                    app.take(one, now_ms());
                }
            }
            key = keys.recv() => match key {
                Some(Event::Key(key)) => app.press(key),
                Some(_) => {}
                // Without a keyboard nobody could ever leave.
                None => break,
            },
            number = signals.next() => return Ok(ExitCode::from(EXIT_SIGNAL + number)),
            _ = tick.tick() => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads keys and resizes in a thread of its own, since a terminal can only be read by waiting.
fn read_keys() -> mpsc::Receiver<Event> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEY_POLL) {
                Ok(false) => {}
                Ok(true) => {
                    let Ok(event) = event::read() else { return };
                    if sender.blocking_send(event).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    });
    keys
}

/// The signals that end the program, once the terminal is as it was.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::new(format!("cannot handle signals: {error}")));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal, and returns its number.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.hangup.recv() => 1,
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Reads the token of the admin port, without the white space around it.
pub fn read_token(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("cannot read the token file {}: {error}", path.display()))
            .hint("name the file of admin.token_file with --token-file")
    })?;
    Ok(text.trim().to_owned())
}
