//! The lessons of a tenant's traffic: one record for those of all requests, and one for each tool that starts children.

use serde::{Deserialize, Serialize};

use crate::engine::cache::learned::SavedLearned;
use crate::engine::cache::worlds::{ModelWeights, TokenWeights};
use crate::engine::fork::experiment::SavedTool;
use crate::engine::gate::SavedHolds;
use crate::engine::records::{self, Change, Record, RecordKey, Times};
use crate::engine::tenant::TenantState;
use crate::engine::words::{IdDigest, RecordKind, TenantId};

/// Longer than any holiday: a tenant that comes back later begins anew.
const TTL_MS: u64 = 30 * 24 * 60 * 60 * 1_000;

/// The name of the record of all requests.
const TRAFFIC: &str = "0";

/// The lessons of all requests of a tenant.
#[derive(Debug, Serialize, Deserialize)]
pub struct Traffic {
    learned: SavedLearned,
    holds: SavedHolds,
    /// Tools that start agents, and sessions whose client names them.
    tools: Vec<String>,
    sessions: Vec<IdDigest>,
}

impl Traffic {
    pub fn of(state: &TenantState, times: Times) -> Traffic {
        let (tools, sessions) = state.fan_outs.habits();
        Traffic {
            learned: state.learned.save(times.now),
            holds: state.gate.save_holds(),
            tools: tools.iter().map(|tool| tool.to_string()).collect(),
            sessions,
        }
    }

    /// Takes over what another process has learned, where that is more.
    pub fn restore(self, state: &mut TenantState) {
        state.learned.restore(self.learned);
        state.gate.restore_holds(self.holds);
        state.fan_outs.restore_habits(self.tools, self.sessions);
    }
}

/// The lessons that were read.
pub enum Lessons {
    Traffic(Box<Traffic>),
    Tool(Box<SavedTool>),
}

fn record(name: &str, body: bytes::Bytes) -> Option<Change> {
    let key = RecordKey::new(RecordKind::Learned, name)?;
    Some(Change::Put(key, Record { group: None, body, blobs: Vec::new(), ttl_ms: TTL_MS }))
}

pub fn put_traffic(tenant: TenantId, traffic: &Traffic, times: Times) -> Option<Change> {
    record(TRAFFIC, records::write(tenant, traffic, times)?)
}

pub fn put_tool(tenant: TenantId, tool: &SavedTool, times: Times) -> Option<Change> {
    record(&name_of(tool.name()), records::write(tenant, tool, times)?)
}

pub fn read(tenant: TenantId, key: &RecordKey, record: &Record, times: Times) -> Option<Lessons> {
    if key.name == TRAFFIC {
        return Some(Lessons::Traffic(records::read(tenant, &record.body, times)?));
    }
    let tool: Box<SavedTool> = records::read(tenant, &record.body, times)?;
    (name_of(tool.name()) == key.name).then_some(Lessons::Tool(tool))
}

/// Names may have any letters, and records have digits.
fn name_of(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

/// The records of what bills have shown of each model's tokens since they were taken last. All tenants share them: they
/// belong to no tenant.
pub fn take_weights(weights: &mut TokenWeights, times: Times) -> Vec<Change> {
    let changed = weights.take_changed().into_iter();
    changed
        .filter_map(|saved| record(&name_of(saved.model()), records::write(TenantId::NOBODY, &saved, times)?))
        .collect()
}

/// Takes over what other processes have learned of tokens, where that is more.
pub fn restore_weights(weights: &mut TokenWeights, changes: &[Change], times: Times) {
    for change in changes {
        if let Change::Put(RecordKey { kind: RecordKind::Learned, .. }, record) = change
            && let Some(saved) = records::read::<ModelWeights>(TenantId::NOBODY, &record.body, times)
        {
            weights.restore(saved);
        }
    }
}
