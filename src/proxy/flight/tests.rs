//! Requests on their way that have to wait, or whose tenant is forgotten.

use super::*;
use crate::engine::decide::{Circumstances, Next, proceed};
use crate::engine::family::fanout::Rules;
use crate::engine::gate::GateSettings;
use crate::engine::tenant::TenantState;
use crate::engine::tenant::tests::{TENANT, plain_body, policy, prepare, read};
use crate::engine::words::{Mode, Moment, Ticket};
use crate::proxy::clock::START;
use crate::store::Limits;

/// A request of this tenant goes out, or waits.
fn proceeds(home: &Home, question: &str, ticket: u64) -> Next {
    let request = read(&*home.tenant, &plain_body("Be brief.", &[question]), START.0);
    let prepared = prepare(&*home.tenant, &request, &home.policy, START);
    let facts = Circumstances {
        ticket: Ticket(ticket),
        mode: Mode::Fork,
        keeps_prefix: true,
        deadline: Moment(u64::MAX),
        has_room: Some(true),
        is_last_round: false,
    };
    home.tenant.look(|state| proceed(request, prepared, state, &home.policy, &facts, START))
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_after_it_was_let_go_counts_as_sent_when_it_is_sent() {
    let limits = Limits { max_bytes: 1 << 26, recent_bytes: 1 << 26, tenant_share: 1.0 };
    let store = Arc::new(Store::new(limits, Rules::default(), GateSettings::default()));
    let home =
        Home { tenant: store.tenant(&TENANT), policy: Arc::new(policy()), clock: Arc::new(Clock::new()) };
    let Next::Send(departure) = proceeds(&home, "Why?", 1) else { panic!("it waits") };
    let mut waits = InFlight::new(home.clone(), departure.flight);
    assert_eq!(waits.flight().unwrap().sent_at, START);
    tokio::time::advance(std::time::Duration::from_secs(4)).await;
    waits.sent_later();
    assert_eq!(waits.flight().unwrap().sent_at, START.after(4_000));
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_forgotten_tenant_makes_a_new_one_known_and_holds_nobody_up() {
    let limits = Limits { max_bytes: 1 << 26, recent_bytes: 1 << 26, tenant_share: 1.0 };
    let store = Arc::new(Store::new(limits, Rules::default(), GateSettings::default()));
    let tenant = store.admit(&TENANT, &store.tenant(&TENANT));
    let home = Home { tenant, policy: Arc::new(policy()), clock: Arc::new(Clock::new()) };
    let Next::Send(leader) = proceeds(&home, "Why?", 1) else { panic!("it waits") };
    let Next::Wait(..) = proceeds(&home, "Who?", 2) else { panic!("it goes") };
    let leader = InFlight::new(home.clone(), leader.flight);
    assert!(store.forget(&TENANT));
    let mut accepted = leader.accept(&store).unwrap();
    let waits = |state: &mut TenantState| state.waits_until(Ticket(2));
    assert_eq!(home.tenant.look(waits), None, "it goes next");
    let known = store.known_tenant(&TENANT).unwrap();
    assert!(!Arc::ptr_eq(&known, &home.tenant));
    accepted.first_content(None);
    let warm = known.look(|state| state.predict(&accepted.accepted().unwrap().flight.trace, START));
    assert!(warm.read.is_some());
}
