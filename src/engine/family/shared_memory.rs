//! The memory of allocations that several values hold, each counted once.

use std::collections::HashMap;

/// Names an allocation by its address, which is its own as long as anybody holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation(pub usize);

#[derive(Debug, Default)]
pub struct SharedMemory {
    held: HashMap<Allocation, Holders>,
    bytes: usize,
}

#[derive(Debug)]
struct Holders {
    count: usize,
    bytes: usize,
}

impl SharedMemory {
    /// Of all allocations that are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One more holds an allocation of this size.
    pub fn hold(&mut self, allocation: Allocation, bytes: usize) {
        let holders = self.held.entry(allocation).or_insert_with(|| {
            self.bytes += bytes;
            Holders { count: 0, bytes }
        });
        holders.count += 1;
    }

    /// One less holds an allocation.
    pub fn release(&mut self, allocation: Allocation) {
        let Some(holders) = self.held.get_mut(&allocation) else { return };
        holders.count -= 1;
        if holders.count == 0 {
            self.bytes -= holders.bytes;
            self.held.remove(&allocation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_counts_once_until_nobody_holds_it() {
        let mut memory = SharedMemory::default();
        memory.hold(Allocation(1), 100);
        memory.hold(Allocation(1), 100);
        memory.hold(Allocation(2), 10);
        assert_eq!(memory.bytes(), 110);
        memory.release(Allocation(1));
        assert_eq!(memory.bytes(), 110);
        memory.release(Allocation(1));
        memory.release(Allocation(3));
        assert_eq!(memory.bytes(), 10);
    }
}
