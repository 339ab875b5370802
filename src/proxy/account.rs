//! An account of what requests take while they are under way, of all of them and of each tenant: exchanges, requests in
//! memory, bytes in memory. Its limit is passed with each call, because it may change.
//!
//! | who | may take |
//! |---|---|
//! | tenants without an accepted request, all together | a quarter: credentials are free to invent |
//! | one of them | three quarters of that |
//! | any other tenant | at most three times what it leaves for others |
//! | tenants with children on a prefix | also the last eighth: without it, those children would be refused upstream |
//!
//! A quarter that is full of uploads would keep a new tenant from ever being accepted. So the upload there of which
//! nothing has come for longest makes room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::displaced::{UploadPlace, UploadState};
use crate::engine::request::identify::Sender;
use crate::engine::words::TenantId;
use crate::store::Store;

/// The part of every limit that tenants without an accepted request share.
const STRANGERS: usize = 4;
/// A tenant may take at most this many times what it leaves.
const SHARE: usize = 3;
/// The part of every limit that is left for tenants with children on a prefix.
const RESERVE: usize = 8;

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payer {
    /// One credential is one payer, whatever workspaces and further credentials come with it.
    pub tenant: TenantId,
    pub standing: Standing,
}

impl Payer {
    /// Whoever has no credential.
    pub const NOBODY: Payer = Payer { tenant: TenantId::NOBODY, standing: Standing::Stranger };

    pub fn of(sender: &Sender, store: &Store) -> Payer {
        let standing = match sender.tenant.and_then(|tenant| store.known_tenant(&tenant)) {
            None => Standing::Stranger,
            Some(known) if known.has_forked_children() => Standing::WithChildren,
            Some(_) => Standing::Known,
        };
        let tenant = store.payer(sender, standing != Standing::Stranger);
        Payer { tenant: tenant.unwrap_or(TenantId::NOBODY), standing }
    }
}

/// How much is known of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// None of its requests was accepted yet, as far as is known.
    Stranger,
    Known,
    /// It has children on a prefix.
    WithChildren,
}

/// What requests under way take.
#[derive(Debug, Default)]
pub struct Accounts {
    /// `limits.connections`: exchanges from their headers to the end of their answers.
    pub exchanges: Arc<Account>,
    /// `limits.held_requests`: requests whose bodies are in memory.
    pub requests: Arc<Account>,
    /// `limits.held_bytes`: bodies of requests that were not accepted yet, and what was read of answers.
    pub bytes: Arc<Account>,
    /// `limits.held_bytes` once more: prompts of requests that were accepted, until the end of their answers.
    pub prompts: Arc<Account>,
}

#[derive(Debug, Default)]
pub struct Account(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    strangers: usize,
    /// Of tenants that have taken anything.
    tenants: HashMap<TenantId, usize>,
    /// The uploads that make room for others, by number.
    uploads: HashMap<u64, Arc<UploadState>>,
    next_upload: u64,
}

/// What was taken for one request, given back when dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    payer: Payer,
    amount: usize,
    /// The state of its upload, if that may have to make room.
    upload: Option<Arc<UploadState>>,
}

impl Account {
    /// Charges a request with nothing yet.
    pub fn open(self: &Arc<Self>, payer: Payer) -> Charge {
        Charge { account: Arc::clone(self), payer, amount: 0, upload: None }
    }

    /// Charges a request with one, if there is room, or if the upload of another can make it.
    pub fn take_one(self: &Arc<Self>, payer: Payer, limit: usize) -> Option<Charge> {
        let mut charge = self.open(payer);
        if charge.grow(1, limit) {
            return Some(charge);
        }
        let displaced = self.lock().displace(payer, limit)?;
        charge.amount = 1;
        displaced.wake();
        Some(charge)
    }

    /// The upload needs its place no more, or makes room no more.
    pub(super) fn forget_upload(&self, number: u64) {
        self.lock().uploads.remove(&number);
    }

    /// The amount that all have taken.
    pub fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// `own`: what was charged to the request before.
    fn take(&mut self, payer: Payer, amount: usize, own: usize, limit: usize) -> bool {
        let mine = self.of(payer);
        let most = match payer.standing {
            Standing::Stranger | Standing::Known => limit - limit / RESERVE,
            Standing::WithChildren => limit,
        };
        let Some(left) = self.all.checked_add(amount).and_then(|all| most.checked_sub(all)) else {
            return false;
        };
        // Whoever has nothing yet gets what there is: the limit may be as small as one body.
        let fits = match payer.standing {
            Standing::Stranger => {
                let quarter = quarter(limit);
                self.strangers + amount <= quarter && (mine == own || mine + amount <= most_of_one(quarter))
            }
            Standing::Known | Standing::WithChildren => {
                mine == 0 || mine + amount <= left.saturating_mul(SHARE)
            }
        };
        if fits {
            self.add(payer, amount);
        }
        fits
    }

    /// Gives a stranger the place of the upload of which nothing has come for longest: of its own uploads if it has as
    /// much as it may, of all otherwise.
    fn displace(&mut self, payer: Payer, limit: usize) -> Option<Arc<UploadState>> {
        if payer.standing != Standing::Stranger {
            return None;
        }
        let is_full = self.of(payer) >= most_of_one(quarter(limit));
        let may_go = |upload: &&Arc<UploadState>| !is_full || upload.payer().tenant == payer.tenant;
        let slowest = self.uploads.values().filter(may_go).min_by_key(|upload| upload.moved_at())?;
        let slowest = Arc::clone(slowest);
        self.uploads.remove(&slowest.number());
        slowest.displace();
        self.give_back(slowest.payer(), 1);
        self.add(payer, 1);
        Some(slowest)
    }

    fn of(&self, payer: Payer) -> usize {
        self.tenants.get(&payer.tenant).copied().unwrap_or(0)
    }

    fn add(&mut self, payer: Payer, amount: usize) {
        self.all += amount;
        self.strangers += if payer.standing == Standing::Stranger { amount } else { 0 };
        *self.tenants.entry(payer.tenant).or_default() += amount;
    }

    fn give_back(&mut self, payer: Payer, amount: usize) {
        self.all -= amount;
        self.strangers -= if payer.standing == Standing::Stranger { amount } else { 0 };
        if let Some(mine) = self.tenants.get_mut(&payer.tenant) {
            *mine -= amount;
            if *mine == 0 {
                self.tenants.remove(&payer.tenant);
            }
        }
    }
}

impl Charge {
    /// Charges more, if there is room. Returns true if there was.
    pub fn grow(&mut self, amount: usize, limit: usize) -> bool {
        let fits = self.account.lock().take(self.payer, amount, self.amount, limit);
        self.amount += if fits { amount } else { 0 };
        fits
    }

    /// The place of an upload, which makes room for others until it is dropped. None unless a stranger takes one place.
    pub fn upload(&mut self) -> Option<UploadPlace> {
        if self.payer.standing != Standing::Stranger || self.amount != 1 {
            return None;
        }
        let mut taken = self.account.lock();
        let number = taken.next_upload;
        taken.next_upload += 1;
        let state = Arc::new(UploadState::new(number, self.payer));
        taken.uploads.insert(number, Arc::clone(&state));
        drop(taken);
        self.upload = Some(Arc::clone(&state));
        Some(UploadPlace::new(Arc::clone(&self.account), state))
    }

    pub fn payer(&self) -> Payer {
        self.payer
    }

    /// The amount that is charged.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut taken = self.account.lock();
        if let Some(upload) = &self.upload {
            taken.uploads.remove(&upload.number());
            if upload.is_displaced() {
                return;
            }
        }
        taken.give_back(self.payer, self.amount);
    }
}

/// The part of a limit that strangers share.
fn quarter(limit: usize) -> usize {
    (limit / STRANGERS).max(1)
}

/// The most of it that one of them may take.
fn most_of_one(quarter: usize) -> usize {
    (quarter - quarter / (SHARE + 1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 80;

    fn payer(number: u8, standing: Standing) -> Payer {
        Payer { tenant: TenantId([number; 32]), standing }
    }

    /// Takes one at a time, until there is no more.
    fn all_of(account: &Arc<Account>, payer: Payer, limit: usize) -> Vec<Charge> {
        std::iter::from_fn(|| account.take_one(payer, limit)).collect()
    }

    #[test]
    fn strangers_share_a_quarter_however_many_credentials_they_invent() {
        let account = Arc::<Account>::default();
        let taken: Vec<Charge> = (0..100)
            .filter_map(|number| account.take_one(payer(number, Standing::Stranger), LIMIT))
            .collect();
        assert_eq!((taken.len(), account.taken()), (20, 20));
        assert_eq!(all_of(&account, payer(200, Standing::Known), LIMIT).len(), 37, "three quarters of 50");
        assert_eq!(account.taken(), 20, "given back");
    }

    #[test]
    fn one_stranger_leaves_a_part_of_the_quarter_for_others() {
        let account = Arc::<Account>::default();
        for one in [Payer::NOBODY, payer(1, Standing::Stranger)] {
            let taken = all_of(&account, one, LIMIT);
            assert_eq!(taken.len(), 15, "three quarters of 20");
            assert_eq!(all_of(&account, payer(2, Standing::Stranger), LIMIT).len(), 5);
        }
        let mut alone = account.open(payer(1, Standing::Stranger));
        assert!(alone.grow(10, LIMIT) && alone.grow(10, LIMIT), "one request gets what there is");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_takes_the_place_of_the_upload_that_waits_for_longest() {
        let account = Arc::<Account>::default();
        let mut charges: Vec<Charge> =
            (0..20).filter_map(|number| account.take_one(payer(number, Standing::Stranger), LIMIT)).collect();
        assert!(account.take_one(payer(30, Standing::Stranger), LIMIT).is_none(), "none is an upload");
        let places: Vec<_> = charges[..3].iter_mut().map(|charge| charge.upload().unwrap()).collect();
        tokio::time::advance(std::time::Duration::from_millis(5)).await;
        places[0].moved();
        places[2].moved();
        assert!(account.take_one(payer(31, Standing::Known), LIMIT).is_some());
        let newcomer = account.take_one(payer(30, Standing::Stranger), LIMIT).unwrap();
        let displaced = |number: usize| places[number].is_taken();
        assert_eq!([displaced(0), displaced(1), displaced(2)], [false, true, false]);
        assert_eq!(account.taken(), 20);
        drop(places);
        assert!(account.take_one(payer(32, Standing::Stranger), LIMIT).is_none(), "all uploads have ended");
        drop((newcomer, charges));
        assert_eq!(account.taken(), 0);
        assert!(account.lock().uploads.is_empty() && account.lock().tenants.is_empty());
    }

    #[test]
    fn a_stranger_with_all_it_may_have_displaces_its_own() {
        let account = Arc::<Account>::default();
        let mut other = account.take_one(payer(1, Standing::Stranger), LIMIT).unwrap();
        let other = other.upload().unwrap();
        let mut nobody = all_of(&account, Payer::NOBODY, LIMIT);
        assert!(account.take_one(Payer::NOBODY, LIMIT).is_none());
        let own = nobody[7].upload().unwrap();
        assert!(account.take_one(Payer::NOBODY, LIMIT).is_some());
        assert!(own.is_taken() && !other.is_taken());
    }

    #[test]
    fn tenants_with_a_credential_in_common_have_one_payer() {
        use crate::engine::request::identify::{TenantRule, sender};
        let config = crate::config::Config::default();
        let limits = crate::store::Limits { max_bytes: 1 << 20, recent_bytes: 1 << 20, tenant_share: 0.5 };
        let store = Store::new(limits, Default::default(), Default::default());
        let rule = TenantRule { pepper: "", headers: &[] };
        let of = |key: &str, bearer: &str| {
            let mut headers = http::HeaderMap::new();
            headers.insert("x-api-key", key.parse().unwrap());
            if !bearer.is_empty() {
                headers.insert("authorization", format!("Bearer {bearer}").parse().unwrap());
            }
            let sender = sender(&headers, rule, &config.identity.clients);
            (sender.tenant.unwrap(), Payer::of(&sender, &store))
        };
        let accept = |key: &str, bearer: &str| {
            let (tenant, _) = of(key, bearer);
            store.admit(&tenant, &store.tenant(&tenant));
            of(key, bearer).1
        };
        // Junk beside an accepted key, and an accepted key beside junk.
        let payer = accept("key", "");
        for number in 0..3 {
            let (stranger, known) = (of("key", &number.to_string()), accept("key", &number.to_string()));
            assert!(stranger.1.tenant == payer.tenant && stranger.1.standing == Standing::Stranger);
            assert!(known.tenant == payer.tenant && known.standing == Standing::Known, "{number}");
            assert_ne!(stranger.0, payer.tenant);
        }
        let payer = accept("junk", "token");
        assert_eq!(accept("more junk", "token").tenant, payer.tenant);
        assert_eq!(accept("token", "").tenant, payer.tenant);
        assert_ne!(of("another", "").1.tenant, payer.tenant);
    }

    #[test]
    fn no_tenant_takes_all_and_the_last_part_is_for_those_with_children() {
        let account = Arc::<Account>::default();
        let mut greedy: Vec<Vec<Charge>> = Vec::new();
        for number in 0..40 {
            greedy.push(all_of(&account, payer(number, Standing::Known), LIMIT));
        }
        assert_eq!(greedy[0].len(), 52, "three quarters of 70");
        assert!(greedy[1].len() == 13 && !greedy[2].is_empty());
        assert_eq!(account.taken(), LIMIT - LIMIT / RESERVE);
        assert!(account.take_one(payer(99, Standing::Known), LIMIT).is_none());
        assert!(!all_of(&account, payer(99, Standing::WithChildren), LIMIT).is_empty());
    }

    #[test]
    fn the_smallest_limit_has_room_for_one_of_anybody() {
        for standing in [Standing::Stranger, Standing::Known, Standing::WithChildren] {
            let account = Arc::<Account>::default();
            assert_eq!(all_of(&account, payer(1, standing), 1).len(), 1, "{standing:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let account = Arc::<Account>::default();
        let mut charge = account.open(payer(1, Standing::Known));
        assert!(charge.grow(60, LIMIT) && !charge.grow(11, LIMIT) && !charge.grow(usize::MAX, LIMIT));
        assert_eq!((charge.amount(), account.taken()), (60, 60));
        drop(charge);
        assert_eq!(account.taken(), 0);
    }
}
