//! The parameters that cache entries depend on, besides the blocks.

use serde::{Deserialize, Serialize};

use super::Scope;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::identify::{each_beta, has_effect};
use crate::engine::request::json;
use crate::engine::request::meaning::Meaning;
use crate::engine::words::{Layer, Parameter, TenantId, digits, first};

/// A value is compared by meaning if its bytes times its depth stay below this, else by its bytes: reading a
/// meaning walks a value once per level, and no real parameter is nested so deep.
const VALUE_WORK_MAX: usize = 256 * 1024;

/// Betas that are distinguished one by one; clients send a dozen. Of more only the whole set is known.
const BETAS_MAX: usize = 64;

impl Parameter {
    /// The first layer whose entries depend on it.
    pub fn layer(self) -> Layer {
        match self {
            Parameter::Speed => Layer::System,
            _ => Layer::Messages,
        }
    }
}

/// The top-level members that count, and as what.
const MEMBERS: [(&str, Parameter); 6] = [
    ("speed", Parameter::Speed),
    ("thinking", Parameter::Thinking),
    ("tool_choice", Parameter::ToolChoice),
    ("output_config", Parameter::OutputConfig),
    ("output_format", Parameter::OutputConfig),
    ("context_management", Parameter::ContextManagement),
];

/// The digest of a value; none for one that is absent or `null`.
type ParameterDigest = Option<Meaning>;

/// The cache-affecting parameters of one request, and the scope of its entries, which depends on nothing else.
#[derive(Clone, Debug)]
pub struct Parameters {
    tenant: TenantId,
    values: ParameterValues,
    scope: Scope,
}

/// The parameters, as they are kept beyond this process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedParameters(ParameterValues);

/// The parameters themselves, as digests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ParameterValues {
    members: [ParameterDigest; MEMBERS.len()],
    betas: Betas,
    first_image: Option<usize>,
}

/// A set of betas.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Betas {
    digest: ParameterDigest,
    /// A number for each of them, sorted; empty if there are too many, or if only the digest was kept.
    #[serde(skip)]
    each: Box<[u64]>,
}

impl PartialEq for Betas {
    fn eq(&self, other: &Betas) -> bool {
        self.digest == other.digest
    }
}

/// The betas that one of two requests has and the other lacks, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct BetaChange(#[serde(with = "digits")] [u8; 32]);

impl Parameters {
    /// `betas` are values of the `anthropic-beta` header, each one or a list. Their order does not count, and neither do
    /// those without effect.
    pub fn read<'b>(
        tenant: TenantId,
        body: &[u8],
        anatomy: &Anatomy,
        betas: impl Iterator<Item = &'b str>,
    ) -> Parameters {
        Parameters::of(tenant, ParameterValues::read(body, anatomy, betas))
    }

    /// Reads the parameters of another request of the same tenant. Most requests repeat those of the one before, and
    /// then its scope is taken over: making one takes most of a microsecond.
    pub fn read_after<'b>(
        before: &Parameters,
        body: &[u8],
        anatomy: &Anatomy,
        betas: impl Iterator<Item = &'b str>,
    ) -> Parameters {
        let (tenant, values) = (before.tenant, ParameterValues::read(body, anatomy, betas));
        match values.differs(&before.values, Layer::Messages) {
            None => Parameters { tenant, values, scope: before.scope.clone() },
            Some(_) => Parameters::of(tenant, values),
        }
    }

    fn of(tenant: TenantId, values: ParameterValues) -> Parameters {
        let scope = Scope::of(&tenant, &values);
        Parameters { tenant, values, scope }
    }

    pub fn save(&self) -> SavedParameters {
        SavedParameters(self.values.clone())
    }

    /// The parameters that another process has saved.
    pub fn restored(tenant: TenantId, saved: SavedParameters) -> Parameters {
        Parameters::of(tenant, saved.0)
    }

    /// The scope of the entries of a request with these parameters.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The first parameter by which entries of `layer` differ between two requests.
    pub fn differs(&self, other: &Parameters, layer: Layer) -> Option<Parameter> {
        self.values.differs(&other.values, layer)
    }

    /// Returns these parameters under the betas of another request.
    pub fn with_betas<'b>(&self, betas: impl Iterator<Item = &'b str>) -> Parameters {
        Parameters::of(self.tenant, ParameterValues { betas: Betas::of(betas), ..self.values.clone() })
    }

    /// Returns the difference between the betas of two requests; none if nothing differs, or anything else does too.
    pub fn beta_change(&self, other: &Parameters) -> Option<BetaChange> {
        let differs = self.differs(other, Layer::Messages) == Some(Parameter::Betas);
        let is_all = differs && self.has_image() == other.has_image();
        if is_all { self.values.betas.change(&other.values.betas) } else { None }
    }

    pub fn has_image(&self) -> bool {
        self.values.first_image.is_some()
    }

    /// The first piece that is or holds an image.
    pub fn first_image(&self) -> Option<usize> {
        self.values.first_image
    }
}

impl ParameterValues {
    fn read<'b>(body: &[u8], anatomy: &Anatomy, betas: impl Iterator<Item = &'b str>) -> ParameterValues {
        ParameterValues {
            members: MEMBERS.map(|(name, _)| digest(body, anatomy, name)),
            betas: Betas::of(betas),
            first_image: anatomy.pieces.iter().position(|piece| piece.shows_image),
        }
    }

    fn differs(&self, other: &ParameterValues, layer: Layer) -> Option<Parameter> {
        let members = MEMBERS.iter().zip(self.members.iter().zip(&other.members));
        let member = members.filter(|(_, (one, two))| one != two).map(|((_, parameter), _)| *parameter);
        let betas = (self.betas != other.betas).then_some(Parameter::Betas);
        let image_differs = self.first_image.is_some() != other.first_image.is_some();
        let image = image_differs.then_some(Parameter::Image);
        member.chain(betas).chain(image).find(|parameter| parameter.layer() <= layer)
    }

    /// Appends what entries of this layer depend on.
    pub(super) fn push(&self, out: &mut Vec<u8>, layer: Layer) {
        let mut digest = |value: &ParameterDigest| {
            out.push(u8::from(value.is_some()));
            out.extend_from_slice(value.as_ref().map_or(&[0; 32][..], |value| value.as_bytes()));
        };
        for ((_, parameter), value) in MEMBERS.iter().zip(&self.members) {
            if parameter.layer() <= layer {
                digest(value);
            }
        }
        if layer == Layer::Messages {
            digest(&self.betas.digest);
            out.push(u8::from(self.first_image.is_some()));
        }
        out.push(match layer {
            Layer::Model | Layer::Tools => b't',
            Layer::System => b's',
            Layer::Messages => b'm',
        });
    }
}

fn digest(body: &[u8], anatomy: &Anatomy, name: &str) -> ParameterDigest {
    let value = &body[anatomy.member(body, name)?.clone()];
    if value == b"null" {
        return None;
    }
    let is_affordable = value.len().saturating_mul(json::depth(value)) <= VALUE_WORK_MAX;
    let meaning = if is_affordable { Meaning::of(value) } else { None };
    Some(meaning.unwrap_or_else(|| Meaning::from_bytes(*blake3::hash(value).as_bytes())))
}

impl Betas {
    fn of<'b>(betas: impl Iterator<Item = &'b str>) -> Betas {
        let mut betas: Vec<&str> = betas.flat_map(each_beta).filter(|beta| has_effect(beta)).collect();
        betas.sort_unstable();
        betas.dedup();
        let digest = (!betas.is_empty())
            .then(|| Meaning::from_bytes(*blake3::hash(betas.join(",").as_bytes()).as_bytes()));
        let number = |beta: &&str| u64::from_be_bytes(first(blake3::hash(beta.as_bytes()).as_bytes()));
        let is_short = betas.len() <= BETAS_MAX;
        let mut each: Vec<u64> = if is_short { betas.iter().map(number).collect() } else { Vec::new() };
        each.sort_unstable();
        Betas { digest, each: each.into() }
    }

    fn change(&self, other: &Betas) -> Option<BetaChange> {
        let is_known = |betas: &Betas| betas.digest.is_none() || !betas.each.is_empty();
        if !is_known(self) || !is_known(other) {
            return None;
        }
        let lacks = |one: &Betas, beta: &u64| one.each.binary_search(beta).is_err();
        let added = self.each.iter().filter(|beta| lacks(other, beta));
        let mut changed: Vec<u64> =
            added.chain(other.each.iter().filter(|beta| lacks(self, beta))).copied().collect();
        changed.sort_unstable();
        let bytes: Vec<u8> = changed.iter().flat_map(|beta| beta.to_be_bytes()).collect();
        Some(BetaChange(*blake3::hash(&bytes).as_bytes()))
    }
}
