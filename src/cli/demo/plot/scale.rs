//! A logarithmic axis: from values to places on the page, and the round values worth a line.

/// Places run from `start` (the least value) to `end` (the greatest), which may lie to the left or above.
#[derive(Clone, Copy, Debug)]
pub struct LogScale {
    least: f64,
    greatest: f64,
    start: f64,
    end: f64,
}

/// Drawn for values that are not above zero, which have no logarithm.
const FLOOR: f64 = 1e-9;

impl LogScale {
    /// Covers the values and nothing more.
    pub fn over(values: impl Iterator<Item = f64>, start: f64, end: f64) -> LogScale {
        let values = values.filter(|value| value.is_finite()).map(|value| value.max(FLOOR));
        let (least, greatest) = values
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        if least <= greatest {
            LogScale { least, greatest, start, end }
        } else {
            LogScale { least: 1.0, greatest: 1.0, start, end }
        }
    }

    /// Widened to the round values around it, so that no line lies on the frame.
    pub fn rounded(self) -> LogScale {
        let below = round_values(self.least).filter(|value| *value <= self.least).last();
        let above = round_values(self.greatest).find(|value| *value >= self.greatest);
        LogScale { least: below.unwrap_or(self.least), greatest: above.unwrap_or(self.greatest), ..self }
    }

    pub fn at(&self, value: f64) -> f64 {
        let span = (self.greatest / self.least).ln();
        if span <= 0.0 {
            return f64::midpoint(self.start, self.end);
        }
        let share = (value.max(FLOOR) / self.least).ln() / span;
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// The round values in it: 1, 2 and 5 of each decade, or the decades alone where those would crowd.
    pub fn ticks(&self) -> Vec<f64> {
        let all: Vec<f64> = round_values(self.least)
            .filter(|value| *value >= self.least)
            .take_while(|value| *value <= self.greatest)
            .collect();
        if all.len() > TICKS_MAX {
            all.into_iter().filter(|value| (value.log10() - value.log10().round()).abs() < 1e-9).collect()
        } else {
            all
        }
    }
}

/// More lines than these are clutter.
const TICKS_MAX: usize = 12;
/// Decades looked through, from one below the least value on; more than any cost or time spans.
const DECADES: i32 = 24;

/// 1, 2, 5, 10, 20, …, beginning a decade below a value.
fn round_values(from: f64) -> impl Iterator<Item = f64> {
    let first = from.max(FLOOR).log10().floor() as i32 - 1;
    (first..first + DECADES).flat_map(|decade| {
        // Dividing keeps 0.1 what it is written as; multiplying by 10⁻¹ would not.
        [1.0, 2.0, 5.0]
            .map(|digit| if decade < 0 { digit / 10_f64.powi(-decade) } else { digit * 10_f64.powi(decade) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn over(values: &[f64]) -> LogScale {
        LogScale::over(values.iter().copied(), 0.0, 100.0)
    }

    #[test]
    fn equal_ratios_are_equal_distances() {
        let scale = over(&[1.0, 10_000.0, 10.0]);
        let places = [1.0, 10.0, 100.0, 1_000.0, 10_000.0].map(|value| scale.at(value).round());
        assert_eq!(places, [0.0, 25.0, 50.0, 75.0, 100.0]);
    }

    #[test]
    fn an_axis_may_run_upwards() {
        let scale = LogScale::over([1.0, 100.0].into_iter(), 300.0, 20.0);
        assert_eq!([1.0, 10.0, 100.0].map(|value| scale.at(value).round()), [300.0, 160.0, 20.0]);
    }

    #[test]
    fn rounding_widens_to_the_next_round_values_and_ticks_are_those_between() {
        let scale = over(&[0.013, 0.9]).rounded();
        assert_eq!(scale.ticks(), [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]);
        assert_eq!((scale.at(0.01), scale.at(1.0)), (0.0, 100.0));
    }

    #[test]
    fn many_decades_are_marked_by_their_powers_of_ten() {
        assert_eq!(over(&[1.0, 100_000.0]).ticks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
    }

    #[test]
    fn one_value_none_and_worthless_ones_have_places_too() {
        assert_eq!(over(&[7.0]).at(7.0), 50.0);
        assert_eq!(over(&[]).at(7.0), 50.0);
        assert_eq!(over(&[f64::NAN, 1.0, 4.0]).at(2.0), 50.0);
        assert_eq!(over(&[0.0, 1.0]).at(-3.0), 0.0);
    }

    proptest! {
        #[test]
        fn order_is_kept_and_nothing_leaves_the_frame(values in prop::collection::vec(1e-6_f64..1e6, 2..20)) {
            let scale = over(&values).rounded();
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            let places: Vec<f64> = sorted.iter().map(|value| scale.at(*value)).collect();
            prop_assert!(places.is_sorted());
            prop_assert!(places.iter().all(|place| (0.0..=100.0).contains(place)));
            prop_assert!(scale.ticks().len() <= TICKS_MAX + 2);
        }
    }
}
