//! The store behind the memory, with stores that work, fail, and come back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use super::*;
use crate::engine::decide::{Circumstances, Next, proceed};
use crate::engine::family::fanout::Rules;
use crate::engine::gate::GateSettings;
use crate::engine::tenant::tests::{NEVER, TENANT, plain_body, policy, prepare, read};
use crate::engine::tenant::{TenantAccess, abandon, accept};
use crate::engine::words::{Mode, Moment, RecordKind, StoreOp};
use crate::store::tests::memory_records::MemoryRecords;
use crate::store::{Limits, Met, Tenant};

mod moments;
mod own_faults;
mod panics;
mod golden;
mod replicas;

/// No test waits longer for what should happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a request waits for the store.
const WAIT: Duration = Duration::from_millis(50);

/// The ways in which a store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Error(StoreError),
    Hangs,
    Panics,
    /// It says that there is more, and never comes to an end.
    NoEnd,
}

/// A store that fails when it is told to.
#[derive(Default)]
struct Faulty {
    records: MemoryRecords,
    fault: Mutex<Option<Fault>>,
    /// The tenants whose calls hang or fail, whatever the fault.
    own: Mutex<Vec<(TenantId, Fault)>>,
    /// The most bytes that are written at once.
    room: Option<usize>,
    is_shared: AtomicBool,
    reads: AtomicUsize,
    writes: AtomicUsize,
    pause: Option<Duration>,
}

impl Faulty {
    fn new() -> Arc<Faulty> {
        Arc::default()
    }

    fn shared() -> Arc<Faulty> {
        Arc::new(Faulty { is_shared: true.into(), ..Faulty::default() })
    }

    fn fails(&self, fault: impl Into<Option<Fault>>) {
        *self.fault.lock().unwrap() = fault.into();
    }

    async fn fault(&self, tenant: TenantId) -> Result<bool, StoreError> {
        if let Some(pause) = self.pause {
            tokio::time::sleep(pause).await;
        }
        let own = self.own.lock().unwrap().iter().find(|(of, _)| *of == tenant).map(|(_, fault)| *fault);
        let fault = own.or(*self.fault.lock().unwrap());
        match fault {
            None => Ok(false),
            Some(Fault::NoEnd) => Ok(true),
            Some(Fault::Error(error)) => Err(error),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Panics) => panic!("a store panics, as the test wants"),
        }
    }

    async fn kinds(&self, tenant: TenantId) -> Vec<RecordKind> {
        let found = self.records.changes(tenant, 0).await.unwrap();
        found.changes.iter().map(|change| change.key().kind).collect()
    }

    async fn version(&self, tenant: TenantId) -> u64 {
        self.records.changes(tenant, 0).await.unwrap().version
    }

    async fn has_spelling(&self, tenant: TenantId) -> bool {
        self.kinds(tenant).await.contains(&RecordKind::Spelling)
    }
}

/// One handle to a store that several processes have.
struct Handle(Arc<Faulty>);

impl RecordStore for Handle {
    fn name(&self) -> &'static str {
        "test"
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared.load(SeqCst)
    }

    fn changes(&self, tenant: TenantId, after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        Box::pin(async move {
            if tenant == TenantId::NOBODY {
                return self.0.records.changes(tenant, after).await;
            }
            self.0.reads.fetch_add(1, SeqCst);
            let has_more = self.0.fault(tenant).await?;
            let found = self.0.records.changes(tenant, after).await?;
            Ok(Changes { has_more, ..found })
        })
    }

    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let written = self.write_after(tenant, 0, changes).await?;
            written.ok_or(StoreError::Garbage)
        })
    }

    fn write_after(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        Box::pin(async move {
            self.0.writes.fetch_add(1, SeqCst);
            self.0.fault(tenant).await?;
            let bytes: usize = changes.iter().map(calls::size).sum();
            if self.0.room.is_some_and(|room| bytes > room) {
                return Err(StoreError::Full);
            }
            self.0.records.write_after(tenant, known, changes).await
        })
    }

    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            self.0.fault(tenant).await?;
            self.0.records.forget(tenant).await
        })
    }
}

/// A process with such a store behind it, and what it has counted.
struct Process {
    store: Arc<Store>,
    /// True while whoever asks for the time panics.
    panics: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<StoreEvent>>>,
}

impl Process {
    fn start(records: &Arc<Faulty>) -> Process {
        let limits = Limits { max_bytes: 64 << 20, recent_bytes: 1 << 20, tenant_share: 0.5 };
        let store = Arc::new(Store::new(limits, Rules::default(), GateSettings::default()));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (told, began) = (Arc::clone(&events), Instant::now());
        let panics = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&panics);
        let surroundings = Surroundings {
            times: Box::new(move || {
                assert!(!fails.load(SeqCst), "a clock panics, as the test wants");
                let ms = began.elapsed().as_millis() as u64;
                Times { now: Moment(1_000 + ms), unix_ms: 1_700_000_000_000 + ms }
            }),
            listener: Box::new(move |event| told.lock().unwrap().push(event)),
            wait: WAIT,
        };
        let behind: Arc<dyn RecordStore> = Arc::new(Handle(Arc::clone(records)));
        store.put_behind(Opened::from(behind), surroundings);
        Process { store, panics, events }
    }

    async fn meet(&self, id: TenantId) -> Arc<Tenant> {
        let Met { tenant, .. } = self.store.meet(&id).await;
        tenant
    }

    /// A request of this tenant is accepted, and brings a spelling first.
    async fn is_taught(&self, id: TenantId) -> Arc<Tenant> {
        let tenant = self.meet(id).await;
        let tenant = self.store.admit(&id, &tenant);
        self.teach(&tenant);
        tenant
    }

    fn teach(&self, tenant: &Tenant) {
        self.teach_at_length(tenant, 0);
    }

    /// The same with a prompt that is longer by this many bytes.
    fn teach_at_length(&self, tenant: &Tenant, more: usize) {
        let (policy, now, ticket) = (policy(), Moment(1_000), self.store.ticket());
        let system = format!("Be brief, in conversation {}.{}", ticket.0, ".".repeat(more));
        let request = read(tenant, &plain_body(&system, &["Why?"]), now.0);
        let prepared = prepare(tenant, &request, &policy, now);
        let facts = Circumstances {
            ticket,
            mode: Mode::Fork,
            keeps_prefix: true,
            deadline: NEVER,
            has_room: Some(true),
            is_last_round: true,
        };
        let next = tenant.look(|state| proceed(request, prepared, state, &policy, &facts, now));
        let Next::Send(departure) = next else { panic!("it does not go") };
        let accepted = accept(tenant, departure.flight, false, now);
        abandon(tenant, &accepted.flight, now);
    }

    fn outcomes(&self, of: StoreOp) -> Vec<&'static str> {
        let events = self.events.lock().unwrap();
        let outcome = |event: &StoreEvent| match event {
            StoreEvent::Op { op, outcome, .. } if *op == of => Some(*outcome),
            _ => None,
        };
        events.iter().filter_map(outcome).collect()
    }

    fn durable(&self) -> &Arc<Durable> {
        self.store.durable.get().unwrap()
    }

    /// A read has failed.
    fn calls_fail(&self) {
        self.durable().calls.read_failed(StoreError::Down);
    }

    fn error(&self) -> Option<StoreError> {
        self.store.condition().unwrap().error
    }
}

fn is_known(tenant: &Tenant) -> bool {
    tenant.spellings(|table| table.entries() > 0)
}

async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < PATIENCE, "{what} does not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn stored(records: &Arc<Faulty>, id: TenantId) {
    until("a spelling is stored", || records.has_spelling(id)).await;
}

#[tokio::test]
async fn what_was_learned_outlives_the_process() {
    let records = Faulty::new();
    let before = Process::start(&records);
    before.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    let after = Process::start(&records);
    assert!(after.store.known_tenant(&TENANT).is_none());
    let tenant = after.meet(TENANT).await;
    assert!(is_known(&tenant));
    assert!(after.store.known_tenant(&TENANT).is_some(), "its requests were accepted once");
    assert_eq!(after.outcomes(StoreOp::Load), ["hit"]);
    let Met { was_known, .. } = after.store.meet(&TENANT).await;
    assert!(was_known && records.reads.load(SeqCst) == 2, "a tenant is loaded once");
}

#[tokio::test]
async fn nothing_is_written_before_a_request_is_accepted() {
    let records = Faulty::new();
    let process = Process::start(&records);
    let tenant = process.meet(TENANT).await;
    process.teach(&tenant);
    process.store.hand_over().await;
    assert_eq!(records.kinds(TENANT).await, []);
    process.store.admit(&TENANT, &tenant);
    stored(&records, TENANT).await;
}

#[tokio::test]
async fn requests_that_come_at_once_share_one_load_and_one_tenant() {
    let records = Arc::new(Faulty { pause: Some(WAIT / 5), ..Faulty::default() });
    let process = Process::start(&records);
    let all = futures_util::future::join_all((0..50).map(|_| process.meet(TENANT))).await;
    assert_eq!(records.reads.load(SeqCst), 1);
    assert!(all.iter().all(|tenant| Arc::ptr_eq(tenant, &all[0])));
    assert_eq!(process.outcomes(StoreOp::Load), ["miss"]);
}

#[tokio::test]
async fn invented_tenants_delay_the_load_of_another_and_do_not_shut_it_out() {
    let records = Arc::new(Faulty { pause: Some(WAIT / 5), ..Faulty::default() });
    let before = Process::start(&records);
    before.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    let after = Process::start(&records);
    let invented = (0..2 * load::LOADS_MAX).map(|number| {
        let mut id = TenantId([7; 32]);
        id.0[..8].copy_from_slice(&number.to_le_bytes());
        after.meet(id)
    });
    tokio::join!(futures_util::future::join_all(invented), after.meet(TENANT));
    until("it is known", || std::future::ready(after.store.known_tenant(&TENANT).is_some())).await;
}

#[tokio::test]
async fn a_slow_load_is_not_waited_for_and_is_merged_when_it_comes() {
    let records = Arc::new(Faulty { pause: Some(6 * WAIT), ..Faulty::default() });
    let before = Process::start(&records);
    before.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    let after = Process::start(&records);
    let began = Instant::now();
    let tenant = after.meet(TENANT).await;
    assert!(began.elapsed() < 5 * WAIT, "it was waited for {:?}", began.elapsed());
    assert!(!is_known(&tenant));
    assert_eq!(after.outcomes(StoreOp::Wait), ["slow"]);
    until("the load is merged", || async { is_known(&tenant) }).await;
    assert!(Arc::ptr_eq(&tenant, &after.meet(TENANT).await));
    assert_eq!(after.error(), None);
}

#[tokio::test]
async fn a_store_that_fails_is_left_alone_and_told_everything_once_it_works() {
    let down = Fault::Error(StoreError::Down);
    let (full, garbage) = (Fault::Error(StoreError::Full), Fault::Error(StoreError::Garbage));
    for fault in [down, full, garbage, Fault::Panics, Fault::NoEnd] {
        let records = Faulty::new();
        records.fails(fault);
        let process = Process::start(&records);
        let tenant = process.is_taught(TENANT).await;
        assert!(is_known(&tenant), "memory goes on: {fault:?}");
        // These may be of one tenant alone.
        if fault != Fault::NoEnd && fault != garbage {
            until("it is left alone", || async { process.error().is_some() }).await;
        }
        let began = Instant::now();
        for _ in 0..100 {
            process.meet(TENANT).await;
        }
        assert!(began.elapsed() < 20 * WAIT, "requests wait for a store that fails: {fault:?}");
        assert!(records.reads.load(SeqCst) + records.writes.load(SeqCst) < 30, "it is hammered: {fault:?}");
        records.fails(None);
        stored(&records, TENANT).await;
        until("all is well again", || async { process.error().is_none() }).await;
        assert!(is_known(&*Process::start(&records).meet(TENANT).await), "{fault:?}");
    }
}

#[tokio::test]
async fn a_store_that_hangs_costs_a_request_no_more_than_its_wait() {
    let records = Faulty::new();
    records.fails(Fault::Hangs);
    let process = Process::start(&records);
    for _ in 0..3 {
        let began = Instant::now();
        let tenant = process.is_taught(TENANT).await;
        assert!(is_known(&tenant));
        assert!(began.elapsed() < 5 * WAIT, "it was waited for {:?}", began.elapsed());
    }
    assert_eq!(records.reads.load(SeqCst), 1, "one load at a time");
}

#[tokio::test]
async fn one_tenant_whose_writes_hang_holds_up_nobody_else() {
    let records = Faulty::new();
    let process = Process::start(&records);
    let (slow, others) = (TENANT, [1, 2, 3, 4, 5, 6].map(|number| TenantId([number; 32])));
    process.meet(slow).await;
    records.own.lock().unwrap().push((slow, Fault::Hangs));
    for _ in 0..3 {
        process.is_taught(slow).await;
    }
    for other in others {
        process.is_taught(other).await;
        stored(&records, other).await;
    }
    assert_eq!(records.kinds(slow).await, []);
}

#[tokio::test]
async fn a_tenant_that_is_forgotten_is_forgotten_everywhere() {
    let records = Faulty::new();
    let process = Process::start(&records);
    process.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    let tenant = process.is_taught(TENANT).await;
    let forgotten = process.store.forget_for_good(&TENANT).await;
    assert_eq!(forgotten, Forgotten { was_known: true, error: None });
    // A request that was under way ends now.
    process.teach(&tenant);
    process.store.close(PATIENCE).await;
    assert_eq!(records.kinds(TENANT).await, []);
    assert!(!is_known(&*process.meet(TENANT).await));
    let again = process.store.forget_for_good(&TENANT).await;
    assert_eq!(again, Forgotten { was_known: false, error: None });
}

#[tokio::test]
async fn what_a_store_cannot_forget_now_it_forgets_later_and_nobody_reads_it_until_then() {
    let records = Faulty::new();
    let process = Process::start(&records);
    process.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    records.fails(Fault::Error(StoreError::Down));
    let forgotten = process.store.forget_for_good(&TENANT).await;
    assert_eq!(forgotten, Forgotten { was_known: true, error: Some(StoreError::Down) });
    records.fails(None);
    assert!(!is_known(&*process.meet(TENANT).await));
    until("it is forgotten", || async { records.kinds(TENANT).await.is_empty() }).await;
}

#[tokio::test]
async fn what_changed_last_is_written_when_the_process_ends() {
    let records = Faulty::new();
    let process = Process::start(&records);
    process.is_taught(TENANT).await;
    process.store.close(PATIENCE).await;
    assert!(records.has_spelling(TENANT).await);
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_is_degraded_from_the_start_and_costs_nobody_time() {
    let limits = Limits { max_bytes: 64 << 20, recent_bytes: 1 << 20, tenant_share: 0.5 };
    let store = Arc::new(Store::new(limits, Rules::default(), GateSettings::default()));
    let surroundings = Surroundings {
        times: Box::new(|| Times { now: Moment(1), unix_ms: 1 }),
        listener: Box::new(|_| {}),
        wait: WAIT,
    };
    let unusable = Unusable { name: "file", error: StoreError::Locked };
    let opened = Opened { store: Arc::new(unusable), error: Some(StoreError::Locked) };
    store.put_behind(opened, surroundings);
    let condition = store.condition().unwrap();
    assert_eq!((condition.store, condition.error), ("file", Some(StoreError::Locked)));
    let began = Instant::now();
    for _ in 0..100 {
        store.meet(&TENANT).await;
    }
    assert!(began.elapsed() < WAIT, "it was waited for {:?}", began.elapsed());
}
