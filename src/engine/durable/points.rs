//! Fork points: one record for what never changes of one, and a small one for who has started from it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::blobs;
use crate::engine::family::fanout::{ForkId, ForkPoint, Parent, Rules, SavedClaims, SavedPoint};
use crate::engine::records::{self, Change, Record, RecordKey, Times};
use crate::engine::tenant::{SavedDecision, TenantAccess};
use crate::engine::words::{Moment, RecordKind, TenantId};

/// The suffix of a name in the record of what changes of a fork point or child.
pub const CHANGING: &str = "-1";

/// A fork point with its bytes: those of the parent's request, then the turn.
#[derive(Serialize, Deserialize)]
pub struct PointText {
    point: SavedPoint,
    /// The number of blobs of the parent's request.
    parent_blobs: usize,
}

#[derive(Serialize, Deserialize)]
struct PointRecord {
    text: PointText,
    since: Moment,
}

#[derive(Serialize, Deserialize)]
struct ClaimsRecord {
    claims: SavedClaims,
    #[serde(default)]
    decision: SavedDecision,
}

/// A fork point that was read, and since when it has been known.
pub struct ReadPoint {
    pub point: ForkPoint,
    pub since: Moment,
}

/// The calls of a fork point that were read.
pub struct ReadClaims {
    pub fork: ForkId,
    pub claims: SavedClaims,
    pub decision: SavedDecision,
}

/// The parents that were read or known, so that all that depends on one shares it.
#[derive(Default)]
pub struct Parents {
    known: HashMap<ForkId, Vec<Arc<Parent>>>,
}

impl PointText {
    /// Returns the text of a fork point, and its blobs.
    pub fn of(point: &ForkPoint) -> (PointText, Vec<Bytes>) {
        let (saved, parent, turn) = point.save();
        let mut bytes = blobs::cut(&parent);
        let parent_blobs = bytes.len();
        bytes.push(turn);
        (PointText { point: saved, parent_blobs }, bytes)
    }

    pub fn id(&self) -> ForkId {
        self.point.id()
    }

    /// The turn, and the blobs behind it.
    pub fn behind_parent<'b>(&self, blobs: &'b [Bytes]) -> Option<(&'b Bytes, &'b [Bytes])> {
        blobs.get(self.parent_blobs..)?.split_first()
    }

    /// Reads the fork point, and its parent if that is not known.
    pub fn read<T: TenantAccess>(
        &self,
        blobs: &[Bytes],
        parents: &mut Parents,
        tenant: &T,
        rules: &Rules,
    ) -> Option<ForkPoint> {
        let (turn, _) = self.behind_parent(blobs)?;
        let parent = parents.of(&self.point, blobs.get(..self.parent_blobs)?, tenant)?;
        self.point.point(parent, turn, rules)
    }
}

impl Parents {
    fn of<T: TenantAccess>(&mut self, point: &SavedPoint, body: &[Bytes], tenant: &T) -> Option<Arc<Parent>> {
        let id = point.id();
        let known = self.known.entry(id).or_insert_with(|| {
            let of_tenant =
                tenant.look(|state| state.fan_outs.known_point(id).map(|known| Arc::clone(&known.parent)));
            of_tenant.into_iter().collect()
        });
        let is_same =
            |parent: &&Arc<Parent>| point.has_parent(parent) && blobs::are(body, parent.request.body());
        if let Some(same) = known.iter().find(is_same) {
            return Some(Arc::clone(same));
        }
        let read = Arc::new(point.parent(blobs::join(body))?);
        known.push(Arc::clone(&read));
        Some(read)
    }
}

pub fn put(tenant: TenantId, point: &ForkPoint, since: Moment, ttl_ms: u64, times: Times) -> Option<Change> {
    let (text, blobs) = PointText::of(point);
    let body = records::write(tenant, &PointRecord { text, since }, times)?;
    let record = Record { group: Some(point.id.name()), body, blobs, ttl_ms };
    Some(Change::Put(key(point.id)?, record))
}

pub fn put_claims(
    tenant: TenantId,
    (fork, claims, ttl_ms): (ForkId, SavedClaims, u64),
    decision: SavedDecision,
    times: Times,
) -> Option<Change> {
    let body = records::write(tenant, &ClaimsRecord { claims, decision }, times)?;
    let record = Record { group: Some(fork.name()), body, blobs: Vec::new(), ttl_ms };
    Some(Change::Put(RecordKey::new(RecordKind::ForkPoint, &(fork.name() + CHANGING))?, record))
}

pub fn key(fork: ForkId) -> Option<RecordKey> {
    RecordKey::new(RecordKind::ForkPoint, &fork.name())
}

pub fn read<T: TenantAccess>(
    tenant: &T,
    id: TenantId,
    (key, record): (&RecordKey, &Record),
    parents: &mut Parents,
    rules: &Rules,
    times: Times,
) -> Option<ReadPoint> {
    let PointRecord { text, since } = records::read(id, &record.body, times)?;
    if ForkId::named(&key.name) != Some(text.id()) {
        return None;
    }
    Some(ReadPoint { point: text.read(&record.blobs, parents, tenant, rules)?, since })
}

pub fn read_claims(id: TenantId, name: &str, record: &Record, times: Times) -> Option<ReadClaims> {
    let ClaimsRecord { claims, decision } = records::read(id, &record.body, times)?;
    Some(ReadClaims { fork: ForkId::named(name)?, claims, decision })
}
