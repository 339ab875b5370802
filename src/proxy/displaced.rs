//! Uploads of tenants without an accepted request, which make room for others of them.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::account::{Account, Payer};

/// An upload that may have to make room, as its account sees it.
#[derive(Debug)]
pub struct UploadState {
    number: u64,
    payer: Payer,
    began: Instant,
    /// When something of it came last, in milliseconds after `began`.
    moved_ms: AtomicU64,
    is_displaced: AtomicBool,
    task: AtomicWaker,
}

/// The place of such an upload, for whoever reads it. It makes room for others until this is dropped.
#[derive(Debug)]
pub struct UploadPlace {
    account: Arc<Account>,
    state: Arc<UploadState>,
}

impl UploadState {
    pub(super) fn new(number: u64, payer: Payer) -> UploadState {
        let (began, moved_ms) = (Instant::now(), AtomicU64::new(0));
        let (is_displaced, task) = Default::default();
        UploadState { number, payer, began, moved_ms, is_displaced, task }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn payer(&self) -> Payer {
        self.payer
    }

    /// When something of it came last.
    pub(super) fn moved_at(&self) -> Instant {
        self.began + Duration::from_millis(self.moved_ms.load(Relaxed))
    }

    pub(super) fn is_displaced(&self) -> bool {
        self.is_displaced.load(Acquire)
    }

    /// Takes its place from it. It hears of that with [`UploadState::wake`].
    pub(super) fn displace(&self) {
        self.is_displaced.store(true, Release);
    }

    pub(super) fn wake(&self) {
        self.task.wake();
    }
}

impl UploadPlace {
    pub(super) fn new(account: Arc<Account>, state: Arc<UploadState>) -> UploadPlace {
        UploadPlace { account, state }
    }

    /// Notes that more of the upload has come.
    pub fn moved(&self) {
        let now = self.state.began.elapsed().as_millis() as u64;
        self.state.moved_ms.store(now, Relaxed);
    }

    pub fn is_taken(&self) -> bool {
        self.state.is_displaced()
    }

    /// Ready once another has taken the place.
    pub fn poll_taken(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.state.task.register(cx.waker());
        if self.is_taken() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for UploadPlace {
    fn drop(&mut self) {
        self.account.forget_upload(self.state.number);
    }
}
