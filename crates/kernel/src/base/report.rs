//! Metrics as modules report them, and Prometheus' two ways to write them.
//!
//! # Source
//! The text format 0.0.4 of Prometheus, and OpenMetrics 1.0. Names of counters end in `_total`.

use super::tally::{BOUNDS, Histogram};
use foldhash::quality::FixedState;
use std::fmt::Write as _;
use std::hash::BuildHasher as _;

/// What a metric's values are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// A counter whose name has no `_total`, as others have called it.
    Untyped,
}

/// A value of a metric.
#[derive(Clone, Debug)]
pub enum Value {
    Count(u64),
    Number(f64),
    Histogram(Histogram),
}

/// A value with what it is of.
#[derive(Clone, Debug)]
pub struct Sample {
    pub labels: Vec<(&'static str, String)>,
    pub value: Value,
}

/// A metric.
#[derive(Clone, Debug)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub samples: Vec<Sample>,
}

/// Longest value of a label; a longer one, which only the configuration can have, ends with `…` and a number that tells it
/// from others: two samples of one series spoil a scrape. Chosen: hosts (253 bytes) and paths of sockets are shorter.
pub const LABEL_BYTES_MAX: usize = 256;

impl Family {
    /// A value; labels with an empty value are left out.
    pub fn put(&mut self, labels: &[(&'static str, &str)], value: Value) -> &mut Self {
        let labels = labels.iter().filter(|(_, value)| !value.is_empty());
        let labels = labels.map(|(name, value)| (*name, shortened(value))).collect();
        self.samples.push(Sample { labels, value });
        self
    }

    pub fn count(&mut self, labels: &[(&'static str, &str)], count: u64) -> &mut Self {
        self.put(labels, Value::Count(count))
    }
}

fn shortened(value: &str) -> String {
    if value.len() <= LABEL_BYTES_MAX {
        return value.to_owned();
    }
    let end = (0..=LABEL_BYTES_MAX).rev().find(|at| value.is_char_boundary(*at));
    let rest = FixedState::default().hash_one(value);
    format!("{}…{rest:016x}", &value[..end.unwrap_or(0)])
}

/// The metrics of a process at a moment, in the order they were reported.
#[derive(Debug, Default)]
pub struct Report(pub Vec<Family>);

impl Report {
    pub fn counter(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.family(name, help, Kind::Counter)
    }

    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, help, Kind::Gauge)
    }

    pub fn untyped(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, help, Kind::Untyped)
    }

    pub fn histogram(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, help, Kind::Histogram)
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: Kind) -> &mut Family {
        // Several modules may have values of one metric.
        let known = self.0.iter().position(|family| family.name == name);
        let place = known.unwrap_or_else(|| {
            self.0.push(Family { name, help, kind, samples: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[place]
    }

    /// As text: OpenMetrics, or Prometheus' own format.
    pub fn write(&self, is_openmetrics: bool) -> String {
        let mut out = String::with_capacity(16 * 1024);
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            write_family(&mut out, family, is_openmetrics);
        }
        if is_openmetrics {
            out.push_str("# EOF\n");
        }
        out
    }
}

fn write_family(out: &mut String, family: &Family, is_openmetrics: bool) {
    let Family { name, help, kind, samples } = family;
    // OpenMetrics has the ending at the samples alone.
    let named = match kind {
        Kind::Counter if is_openmetrics => name.strip_suffix("_total").unwrap_or(name),
        _ => name,
    };
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
        Kind::Untyped if is_openmetrics => "unknown",
        Kind::Untyped => "untyped",
    };
    let _ = writeln!(out, "# HELP {named} {help}\n# TYPE {named} {kind}");
    for Sample { labels, value } in samples {
        match value {
            Value::Count(count) => line(out, name, "", labels, None, &count.to_string()),
            Value::Number(number) => line(out, name, "", labels, None, &number.to_string()),
            Value::Histogram(found) => {
                let mut below = 0;
                let bounds = BOUNDS.iter().copied().chain(["+Inf"]);
                for (bound, count) in bounds.zip(&found.buckets) {
                    below += count;
                    line(out, name, "_bucket", labels, Some(bound), &below.to_string());
                }
                line(out, name, "_sum", labels, None, &seconds(found.sum_micros));
                line(out, name, "_count", labels, None, &below.to_string());
            }
        }
    }
}

/// Seconds, with as many digits as a microsecond needs.
pub fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

fn line(
    out: &mut String,
    name: &str,
    ending: &str,
    labels: &[(&'static str, String)],
    bound: Option<&str>,
    value: &str,
) {
    let _ = write!(out, "{name}{ending}");
    let all = labels.iter().map(|(name, value)| (*name, value.as_str()));
    let mut before = '{';
    for (name, value) in all.chain(bound.map(|bound| ("le", bound))) {
        let _ = write!(out, "{before}{name}=\"");
        before = ',';
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    if before == ',' {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_as_they_shall_be() {
        let mut report = Report::default();
        report.counter("a_total", "As.").count(&[("zone", "x\"\\\n"), ("b", "")], 3);
        report.gauge("none", "Of nothing.");
        report.gauge("b", "Bs.").put(&[], Value::Number(1.5));
        let buckets = [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4].to_vec();
        let found = Histogram { buckets, sum_micros: 2_500_001 };
        report.histogram("c", "Cs.").put(&[("z", "1")], Value::Histogram(found));
        let text = report.write(false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..5],
            [
                "# HELP a_total As.",
                "# TYPE a_total counter",
                "a_total{zone=\"x\\\"\\\\\\n\"} 3",
                "# HELP b Bs.",
                "# TYPE b gauge",
            ]
        );
        assert_eq!(lines[5], "b 1.5");
        assert_eq!(lines[8], "c_bucket{z=\"1\",le=\"0.005\"} 1");
        assert_eq!(lines[19], "c_bucket{z=\"1\",le=\"+Inf\"} 7");
        assert_eq!(lines[20..], ["c_sum{z=\"1\"} 2.500001", "c_count{z=\"1\"} 7"]);
        let open = report.write(true);
        assert!(open.starts_with("# HELP a As.\n# TYPE a counter\na_total{"), "{open}");
        assert!(open.ends_with("c_count{z=\"1\"} 7\n# EOF\n"), "{open}");
    }

    #[test]
    fn labels_are_bounded_and_no_two_become_one() {
        let mut report = Report::default();
        let names = ["a", "b", "é"].map(|end| "é".repeat(5000) + end);
        names
            .iter()
            .for_each(|name| _ = report.gauge("a", "As.").count(&[("z", name.as_str())], 1));
        let labels: Vec<_> = report.0[0].samples.iter().map(|one| &one.labels[0].1).collect();
        let is_short = |label: &&String| {
            label.contains("é…") && label.len() <= LABEL_BYTES_MAX + "…".len() + 16
        };
        assert!(labels.iter().all(is_short), "{labels:?}");
        assert!(labels[0] != labels[1] && labels[1] != labels[2], "{labels:?}");
    }
}
