//! How far the walk over a list of elements has come in a list that is known.

/// Where in a known list the walk of a new one is.
#[derive(Default)]
pub(super) struct Place {
    pub next: usize,
}

impl Place {
    /// Finds the known element that the rest of the body starts with: the expected one, the one before (if an
    /// element was inserted), or the two after (if one or two were removed). A comparison that fails reads
    /// less than the element that is walked instead, so all of them together stay linear.
    pub fn find<'k>(&mut self, rest: &[u8], known: impl Fn(usize) -> Option<&'k [u8]>) -> Option<usize> {
        let next = self.next;
        let tries = [Some(next), next.checked_sub(1), Some(next + 1), Some(next + 2)];
        let matches = |index: &usize| known(*index).is_some_and(|bytes| rest.starts_with(bytes));
        let index = tries.into_iter().flatten().find(matches);
        self.next = index.unwrap_or(next) + 1;
        index
    }

    /// The element that stood where the walk has just looked in vain.
    pub fn passed(&self) -> usize {
        self.next.saturating_sub(1)
    }
}
