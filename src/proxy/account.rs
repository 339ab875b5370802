//! An account of what requests take while they are under way, of all of them and of each tenant: exchanges, requests in
//! memory, bytes in memory. Its limit is passed with each call, because it may change.
//!
//! | who | may take |
//! |---|---|
//! | tenants without an accepted request, all together | a quarter: credentials are free to invent |
//! | any tenant | at most three times what it leaves for others |
//! | tenants with children on a prefix | also the last eighth: without it, those children would be refused upstream |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// One credential is one payer, whatever workspaces it names.
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
        Payer { tenant: sender.payer.unwrap_or(TenantId::NOBODY), standing }
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
}

/// What was taken for one request, given back when dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    payer: Payer,
    amount: usize,
}

impl Account {
    /// Charges a request with nothing yet.
    pub fn open(self: &Arc<Self>, payer: Payer) -> Charge {
        Charge { account: Arc::clone(self), payer, amount: 0 }
    }

    /// Charges a request with one, if there is room.
    pub fn take_one(self: &Arc<Self>, payer: Payer, limit: usize) -> Option<Charge> {
        let mut charge = self.open(payer);
        charge.grow(1, limit).then_some(charge)
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
    fn take(&mut self, payer: Payer, amount: usize, limit: usize) -> bool {
        let mine = self.tenants.get(&payer.tenant).copied().unwrap_or(0);
        let most = match payer.standing {
            Standing::Stranger | Standing::Known => limit - limit / RESERVE,
            Standing::WithChildren => limit,
        };
        let Some(left) = self.all.checked_add(amount).and_then(|all| most.checked_sub(all)) else {
            return false;
        };
        let fits = match payer.standing {
            Standing::Stranger => self.strangers + amount <= (limit / STRANGERS).max(1),
            // Whoever has nothing yet gets what there is: the limit may be as small as one body.
            Standing::Known | Standing::WithChildren => {
                mine == 0 || mine + amount <= left.saturating_mul(SHARE)
            }
        };
        if fits {
            self.all += amount;
            self.strangers += if payer.standing == Standing::Stranger { amount } else { 0 };
            *self.tenants.entry(payer.tenant).or_default() += amount;
        }
        fits
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
        let fits = self.account.lock().take(self.payer, amount, limit);
        self.amount += if fits { amount } else { 0 };
        fits
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
        if self.amount > 0 {
            self.account.lock().give_back(self.payer, self.amount);
        }
    }
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
