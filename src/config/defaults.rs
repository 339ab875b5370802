//! The defaults, section by section. Those of the engine's rules are defined in the engine, and used here.

use std::time::Duration;

use crate::engine::respell::canonical::Order;
use crate::engine::respell::system_block::SystemForm;
use crate::engine::{family::fanout, fork, gate};

use super::Mode;
use super::types::{
    Admin, Bodies, CanonicalConfig, Drain, Fork, Gate, GateScope, Identity, Limits, Log, LogFormat, OAuth,
    Profile, Record, Secret, Server, Store, StoreKind, TraceConfig, Upstream, Volatile,
};

const MIB: usize = 1024 * 1024;

impl Default for Server {
    fn default() -> Self {
        Server {
            listen: ([127, 0, 0, 1], 8787).into(),
            admin_listen: ([127, 0, 0, 1], 8788).into(),
            metrics_listen: None,
            mode: Mode::Fork,
            response_headers: true,
        }
    }
}

impl Default for Upstream {
    fn default() -> Self {
        Upstream {
            url: http::Uri::from_static("https://api.anthropic.com"),
            profile: Profile::Anthropic,
            strips_attribution: None,
            connect: Duration::from_millis(5000),
            idle: Duration::from_secs(900),
        }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Identity {
            pepper: Secret::default(),
            tenant_headers: Vec::new(),
            clients: Vec::new(),
            oauth: OAuth::Observe,
        }
    }
}

impl Default for CanonicalConfig {
    fn default() -> Self {
        CanonicalConfig {
            order: Order::FirstSeen,
            system: SystemForm::Auto,
            volatile: Volatile::Report,
            diagnose: false,
        }
    }
}

impl Default for Fork {
    fn default() -> Self {
        let fanout = fanout::Rules::default();
        Fork {
            tools: fanout.tools,
            min_directive_chars: fanout.min_directive_chars,
            min_children: fanout.min_children,
            min_coverage: fanout.min_coverage,
            match_window: Duration::from_secs(fanout.match_window_s),
            scan_bytes: fanout.scan_bytes,
            ttl: Duration::from_secs(fanout.ttl_s),
            await_parent: Duration::from_millis(3000),
            boilerplate: None,
            policy: fork::ForkPolicy::default(),
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        let gate = gate::GateSettings::default();
        Gate {
            scope: GateScope::Children,
            max_hold: Duration::from_millis(gate.max_hold_ms),
            min_tokens: gate.min_tokens as usize,
            json_hold: Duration::from_millis(gate.json_hold_ms),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        let fanout = fanout::Rules::default();
        Store {
            kind: StoreKind::Memory,
            path: None,
            url: None,
            key: Secret::default(),
            key_file: None,
            deadline: Duration::from_millis(50),
            lock_wait: Duration::from_secs(10),
            max_age: Duration::from_secs(7 * 24 * 3600),
            max_bytes: 256 * MIB,
            tenant_share: 0.25,
            recent_bytes: 64 * MIB,
            child_ttl: Duration::from_secs(fanout.child_ttl_s),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let fanout = fanout::Rules::default();
        Limits {
            body_bytes: 32 * MIB,
            observe_bytes: 16 * MIB,
            connections: 4096,
            held_requests: 1024,
            held_bytes: 256 * MIB,
            pending_forks: fanout.pending_forks,
            tool_uses: 256,
            header: Duration::from_secs(75),
            stall: Duration::from_secs(60),
        }
    }
}

impl Default for Record {
    fn default() -> Self {
        Record {
            file: None,
            max_bytes: 64 * MIB,
            files: 8,
            bodies: Bodies::Off,
            matching: None,
            match_minutes: 15,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Log { format: LogFormat::Human, level: tracing::Level::INFO }
    }
}

impl Default for TraceConfig {
    fn default() -> Self {
        TraceConfig {
            endpoint: None,
            sample: 1.0,
            headers_file: None,
            propagate: false,
            resource: Vec::new(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Admin { token_file: None, open_metrics: false, subscribers: 16 }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Drain { delay: Duration::ZERO, deadline: Duration::from_secs(300) }
    }
}
