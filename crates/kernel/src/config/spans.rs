//! Values of ranges of addresses, found by bisection: many ranges cost hardly more than few.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An address as a number.
pub trait Address: Copy + Ord {
    /// The one behind it; `None` behind the last.
    fn next(self) -> Option<Self>;
    /// Its first 16 bits.
    fn head(self) -> u16;
}

/// With as many spans, those of each head are known; chosen: the table of heads is smaller than they are.
const MANY: usize = 20_000;

impl Address for u32 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }

    fn head(self) -> u16 {
        u16::try_from(self >> 16).expect("16 bits")
    }
}

impl Address for u128 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }

    fn head(self) -> u16 {
        u16::try_from(self >> 112).expect("16 bits")
    }
}

/// A value for a range of addresses, both ends included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range<A> {
    pub first: A,
    pub last: A,
    /// Below [`Spans::NOTHING`].
    pub value: u32,
}

/// Ranges that do not overlap, each with a value.
#[derive(Clone, Debug)]
pub struct Spans<A> {
    /// Where each begins; it ends before the next one.
    starts: Box<[A]>,
    values: Box<[u32]>,
    /// Of many: by head, how many spans begin below it.
    below: Option<Box<[u32]>>,
}

impl<A> Default for Spans<A> {
    fn default() -> Self {
        Self { starts: Box::default(), values: Box::default(), below: None }
    }
}

impl<A: Address> Spans<A> {
    /// The value of what no range covers.
    pub const NOTHING: u32 = u32::MAX;

    /// Where ranges overlap, the first of them counts.
    pub fn first_counts(ranges: &[Range<A>]) -> Self {
        let ends = ranges.iter().filter_map(|range| range.last.next());
        let mut bounds: Vec<A> = ranges.iter().map(|range| range.first).chain(ends).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut by_start: Vec<usize> = (0..ranges.len()).collect();
        by_start.sort_unstable_by_key(|at| ranges[*at].first);
        let mut coming = by_start.into_iter().peekable();
        // Those that have begun, the first of the list on top; what has ended is taken off when it gets there.
        let mut begun = BinaryHeap::new();
        let (mut starts, mut values) = (Vec::new(), Vec::new());
        for bound in bounds {
            while let Some(at) = coming.next_if(|at| ranges[*at].first <= bound) {
                begun.push(Reverse(at));
            }
            while begun.peek().is_some_and(|Reverse(at)| ranges[*at].last < bound) {
                begun.pop();
            }
            let value = begun.peek().map_or(Self::NOTHING, |Reverse(at)| ranges[*at].value);
            if values.last().copied().unwrap_or(Self::NOTHING) != value {
                starts.push(bound);
                values.push(value);
            }
        }
        Self::sorted(starts, values, MANY)
    }

    /// Of ranges that lie in one another or apart, in the order of where they begin, the outer one first: where they
    /// lie in one another the inner one counts.
    pub fn nested(ranges: impl Iterator<Item = Range<A>>) -> Self {
        let mut made = Growing { starts: Vec::new(), values: Vec::new() };
        // Those that have begun and not ended, each inside the one before.
        let mut around: Vec<Range<A>> = Vec::new();
        for range in ranges {
            while let Some(ended) = around.pop_if(|outer| outer.last < range.first) {
                made.end(ended, around.last());
            }
            made.put(range.first, range.value);
            around.push(range);
        }
        while let Some(ended) = around.pop() {
            made.end(ended, around.last());
        }
        Self::sorted(made.starts, made.values, MANY)
    }

    fn sorted(starts: Vec<A>, values: Vec<u32>, many: usize) -> Self {
        let below = (starts.len() >= many).then(|| below_heads(&starts));
        Self { starts: starts.into(), values: values.into(), below }
    }

    /// The value of an address, if a range covers it.
    pub fn find(&self, address: A) -> Option<u32> {
        let head = usize::from(address.head());
        let (from, to) = match &self.below {
            Some(below) => (below[head] as usize, below[head + 1] as usize),
            None => (0, self.starts.len()),
        };
        let behind = from + self.starts[from..to].partition_point(|start| *start <= address);
        let value = self.values[behind.checked_sub(1)?];
        (value != Self::NOTHING).then_some(value)
    }
}

/// Spans that are made in order.
struct Growing<A> {
    starts: Vec<A>,
    values: Vec<u32>,
}

impl<A: Address> Growing<A> {
    /// From here on it is this value.
    fn put(&mut self, start: A, value: u32) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.values.pop();
        }
        if self.values.last().copied().unwrap_or(Spans::<A>::NOTHING) != value {
            self.starts.push(start);
            self.values.push(value);
        }
    }

    /// Behind a range counts the one around it. Behind the last address there is nothing.
    fn end(&mut self, range: Range<A>, outer: Option<&Range<A>>) {
        if let Some(behind) = range.last.next() {
            self.put(behind, outer.map_or(Spans::<A>::NOTHING, |outer| outer.value));
        }
    }
}

/// By head, how many of the starts have a lesser one; behind the last, all.
fn below_heads<A: Address>(starts: &[A]) -> Box<[u32]> {
    let mut below = Vec::with_capacity(usize::from(u16::MAX) + 2);
    let mut count = 0;
    for head in 0..=u16::MAX {
        below.push(u32::try_from(count).expect("fewer lines than that are read"));
        count += starts[count..].iter().take_while(|start| start.head() == head).count();
    }
    below.push(u32::try_from(count).expect("fewer lines than that are read"));
    below.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(ranges: &[Range<u32>], addresses: impl Iterator<Item = u32>) {
        let spans = Spans::first_counts(ranges);
        for address in addresses {
            let covers = |range: &&Range<u32>| (range.first..=range.last).contains(&address);
            let naive = ranges.iter().find(covers).map(|range| range.value);
            assert_eq!(spans.find(address), naive, "{address} in {ranges:?}");
        }
    }

    #[test]
    fn many_are_found_by_their_heads_as_few_are() {
        for _ in 0..20 {
            let address =
                |_| fastrand::u32(..8) << 29 | fastrand::u32(..4) << 16 | fastrand::u32(..4);
            let mut starts: Vec<u32> = (0..fastrand::usize(..60)).map(address).collect();
            starts.extend([fastrand::u32(..), u32::MAX]);
            starts.sort_unstable();
            starts.dedup();
            let values: Vec<u32> = starts.iter().map(|_| fastrand::u32(..4)).collect();
            let few = Spans::sorted(starts.clone(), values.clone(), usize::MAX);
            let many = Spans::sorted(starts.clone(), values, 0);
            let around =
                starts.iter().flat_map(|at| [at.saturating_sub(1), *at, at.saturating_add(1)]);
            for address in around.chain([0, u32::MAX, fastrand::u32(..)]) {
                assert_eq!(many.find(address), few.find(address), "{address} in {starts:?}");
            }
        }
    }

    #[test]
    fn any_ranges_are_found_as_one_after_the_other_would_be() {
        for _ in 0..3000 {
            let range = |_| {
                let (a, b) = (fastrand::u32(..40), fastrand::u32(..40));
                Range { first: a.min(b), last: a.max(b), value: fastrand::u32(..4) }
            };
            let ranges: Vec<_> = (0..fastrand::usize(..12)).map(range).collect();
            compare(&ranges, 0..42);
        }
    }

    #[test]
    fn the_last_address_is_one_like_others() {
        let last = u32::MAX;
        let one = |first, last, value| Range { first, last, value };
        let ranges = [one(last, last, 1), one(5, last - 1, 2), one(0, last, 3)];
        compare(&ranges, [0, 4, 5, last - 2, last - 1, last].into_iter());
        assert_eq!(Spans::<u32>::default().find(7), None);
        let all = [Range { first: 0, last: u128::MAX, value: 7 }];
        assert_eq!(Spans::first_counts(&all).find(u128::MAX), Some(7));
    }
}
