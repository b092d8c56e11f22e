//! Numbers that follow from a seed, on every machine and in every release: a run is named by its seed alone.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A source of its own for each part of a plan, so that one part does not shift when another draws more.
    pub(crate) fn of(seed: u64, part: &str, number: u64) -> Self {
        let mut rng = Self(seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        for byte in part.bytes() {
            rng.0 = rng.next() ^ u64::from(byte);
        }
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True so many times out of a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_are_always_the_same() {
        let mut rng = Rng(1_234_567);
        assert_eq!(rng.next(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next(), 3_203_168_211_198_807_973);
        assert_eq!(Rng::of(1, "a", 0).next(), Rng::of(1, "a", 0).next());
        assert_ne!(Rng::of(1, "a", 0).next(), Rng::of(1, "b", 0).next());
        assert_ne!(Rng::of(1, "a", 0).next(), Rng::of(1, "a", 1).next());
    }
}
