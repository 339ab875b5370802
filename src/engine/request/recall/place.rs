//! How far the walk over a list of elements has come in a list that is known.

/// The place in a known list where the walk of a new one is.
#[derive(Default)]
pub(super) struct ListPosition {
    pub next: usize,
}

impl ListPosition {
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

    /// Returns the element at the place where nothing was found.
    pub fn passed(&self) -> usize {
        self.next.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::ListPosition;

    /// Which elements of the second list are taken from the first.
    fn taken(old: &[&str], new: &[&str]) -> Vec<Option<usize>> {
        let mut place = ListPosition::default();
        let known = |index: usize| old.get(index).map(|element| element.as_bytes());
        new.iter().map(|element| place.find(element.as_bytes(), known)).collect()
    }

    #[test]
    fn comparing_falls_back_into_step_after_a_change() {
        let old = ["a", "b", "c", "d", "e"];
        assert_eq!(taken(&old, &["a", "b", "c"]), [Some(0), Some(1), Some(2)]);
        assert_eq!(taken(&old, &["a", "x", "c", "d"]), [Some(0), None, Some(2), Some(3)]);
        assert_eq!(taken(&old, &["a", "x", "y", "d"]), [Some(0), None, None, Some(3)]);
        assert_eq!(taken(&old, &["a", "x", "b", "c"]), [Some(0), None, Some(1), Some(2)]);
        assert_eq!(taken(&old, &["b", "c"]), [Some(1), Some(2)]);
        assert_eq!(taken(&old, &["a", "d", "e", "x"]), [Some(0), Some(3), Some(4), None]);
        assert_eq!(taken(&old, &["x"; 9]), [None; 9]);
    }
}
