//! Lines of CSV and libsvm files, into numbers. Any text gives examples or an error that names the line.

use std::fmt::Write as _;

use super::args::LabelColumn;

/// A file as it stands, before the features of several files are brought to the same columns.
#[derive(Debug, PartialEq)]
pub(super) struct Table {
    pub(super) labels: Vec<f64>,
    values: Values,
}

#[derive(Debug, PartialEq)]
enum Values {
    /// Row by row, `width` numbers each.
    Dense { width: usize, numbers: Vec<f32> },
    /// For each row its line in the file and its (index, value), ascending.
    Sparse { rows: Vec<(usize, Vec<(u32, f32)>)>, lowest: Option<u32>, highest: u32 },
}

/// Which columns the features of all files of a data set have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The index of the first feature in libsvm files.
    base: u32,
    /// Number of features.
    width: usize,
}

/// Most numbers a data set may have as a dense table: 4 GiB.
const NUMBERS_MAX: usize = 1 << 30;

impl Layout {
    /// The columns for these files; `features` of them if that is asked for.
    ///
    /// Indices of libsvm files start at 1 by custom, and at 0 if any of the files has a 0: one file of a data set need
    /// not have every feature. For the same reason the largest index of all counts.
    pub(super) fn of(tables: &[&Table], features: Option<usize>) -> Self {
        let has_zero = |table: &&Table| matches!(table.values, Values::Sparse { lowest: Some(0), .. });
        let base = if tables.iter().any(has_zero) { 0 } else { 1 };
        let dense = tables.iter().find_map(|table| match table.values {
            Values::Dense { width, .. } => Some(width),
            Values::Sparse { .. } => None,
        });
        let sparse = tables.iter().filter_map(|table| match table.values {
            Values::Sparse { lowest: Some(_), highest, .. } => Some((highest - base) as usize + 1),
            Values::Dense { .. } | Values::Sparse { .. } => None,
        });
        Self { base, width: features.or(dense).or(sparse.max()).unwrap_or(1) }
    }

    /// Number of features.
    pub(super) fn width(self) -> usize {
        self.width
    }
}

impl Table {
    /// The features in the columns of `layout`, row by row.
    pub(super) fn features(&self, layout: Layout) -> Result<Vec<f32>, String> {
        let width = layout.width;
        match &self.values {
            Values::Dense { width: found, .. } if *found != width => {
                Err(format!("expected {width} features, found {found}"))
            }
            Values::Dense { numbers, .. } => Ok(numbers.clone()),
            Values::Sparse { rows, .. } => {
                check_size(rows.len().saturating_mul(width))?;
                let mut features = vec![0.0; rows.len() * width];
                for (target, (line, row)) in features.chunks_exact_mut(width).zip(rows) {
                    for (index, value) in row {
                        let slot = index.checked_sub(layout.base).and_then(|place| target.get_mut(place as usize));
                        *slot.ok_or_else(|| {
                            format!("line {line}: index {index} is beyond the {width} features there are")
                        })? = *value;
                    }
                }
                Ok(features)
            }
        }
    }
}

/// Parses a file of either format; it is libsvm when an `index:value` comes before any comma.
pub(super) fn parse(text: &str, label: LabelColumn) -> Result<Table, String> {
    // Some editors mark text with it; it would make a name of the first number.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    content(text).next().ok_or("there is no example in it")?;
    if is_libsvm(text) { libsvm(text) } else { csv(text, label) }
}

fn is_libsvm(text: &str) -> bool {
    let decide = |(_, line): (usize, &str)| {
        let line = without_comment(line);
        let has_pair = || line.split_whitespace().skip(1).any(|field| field.contains(':')).then_some(true);
        if line.contains(',') { Some(false) } else { has_pair() }
    };
    content(text).find_map(decide).unwrap_or(false)
}

/// Lines with something in them, and their numbers.
fn content(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

fn csv(text: &str, label: LabelColumn) -> Result<Table, String> {
    let (mut labels, mut numbers) = (Vec::new(), Vec::new());
    let mut columns = None;
    for (position, (line, content)) in content(text).enumerate() {
        let fields: Vec<&str> = content.split(',').map(|field| field.trim().trim_matches('"')).collect();
        // A number that is missing is no name.
        let is_name = |field: &&str| !field.is_empty() && field.parse::<f64>().is_err();
        if position == 0 && fields.iter().any(is_name) {
            columns = Some(fields.len());
            continue;
        }
        let expected = *columns.get_or_insert(fields.len());
        if fields.len() != expected {
            return Err(format!("line {line}: expected {expected} columns, found {}", fields.len()));
        }
        if expected < 2 {
            return Err(format!("line {line}: expected at least one feature and a label, found one column"));
        }
        let at = if label == LabelColumn::First { 0 } else { expected - 1 };
        for (column, field) in fields.iter().enumerate() {
            let problem = |problem| format!("line {line}, column {}: {problem}", column + 1);
            if column == at {
                labels.push(number(field).map_err(problem)?);
            } else {
                numbers.push(feature(field).map_err(problem)?);
            }
        }
        check_size(numbers.len())?;
    }
    match columns {
        Some(columns) if !labels.is_empty() => {
            Ok(Table { labels, values: Values::Dense { width: columns - 1, numbers } })
        }
        _ => Err("there is no example in it, only column names".to_owned()),
    }
}

fn libsvm(text: &str) -> Result<Table, String> {
    let mut rows: Vec<(usize, Vec<(u32, f32)>)> = Vec::new();
    let mut labels = Vec::new();
    let mut lowest = None;
    let mut highest = 0;
    for (line, content) in content(text) {
        let mut fields = without_comment(content).split_whitespace();
        let label = fields.next().unwrap_or_default();
        labels.push(number(label).map_err(|problem| format!("line {line}, label: {problem}"))?);
        let mut row: Vec<(u32, f32)> = Vec::new();
        for field in fields {
            let expected = || format!("line {line}: expected index:value, found '{}'", shortened(field));
            let (index, value) = field.split_once(':').ok_or_else(expected)?;
            let index: u32 = index.parse().map_err(|_| expected())?;
            let value = feature(value).map_err(|problem| format!("line {line}, index {index}: {problem}"))?;
            if row.last().is_some_and(|(last, _)| *last >= index) {
                return Err(format!("line {line}: indices must ascend, {index} does not"));
            }
            lowest = Some(lowest.map_or(index, |lowest: u32| lowest.min(index)));
            highest = highest.max(index);
            row.push((index, value));
        }
        rows.push((line, row));
    }
    Ok(Table { labels, values: Values::Sparse { rows, lowest, highest } })
}

/// A label: in f64, so that large whole numbers stay different classes.
fn number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(format!("expected a finite number, found '{}'", shortened(text))),
    }
}

fn feature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(format!("expected a finite number, found '{}'", shortened(text))),
    }
}

fn check_size(numbers: usize) -> Result<(), String> {
    if numbers > NUMBERS_MAX {
        Err(format!("more than {NUMBERS_MAX} numbers as a dense table; this trainer keeps one"))
    } else {
        Ok(())
    }
}

/// Foreign text, short and printable.
fn shortened(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars().take(40) {
        let _ = write!(short, "{}", c.escape_debug());
    }
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Labels, features and their number, of a file that is alone.
    fn alone(text: &str, label: LabelColumn, width: Option<usize>) -> Result<(Vec<f64>, Vec<f32>, usize), String> {
        let table = parse(text, label)?;
        let layout = Layout::of(&[&table], width);
        Ok((table.labels.clone(), table.features(layout)?, layout.width()))
    }

    fn parse_last(text: &str) -> Result<(Vec<f64>, Vec<f32>, usize), String> {
        alone(text, LabelColumn::Last, None)
    }

    #[test]
    fn csv_with_and_without_column_names() {
        let expected = (vec![3.0, 6.0], vec![1.0, 2.0, 4.0, 5.0], 2);
        for text in [
            "1,2,3\n4,5,6\n",
            "# note\na,b,c\r\n 1, 2,3\r\n\r\n4,5,6",
            "\u{feff}1,2,3\n4,5,6\n",
            "\"a\",\"b\",\"c\"\n\"1\",2,\"3\"\n4,5,6",
            ",b,c\n1,2,3\n4,5,6",
            "0,1,label\n1,2,3\n4,5,6",
        ] {
            assert_eq!(parse_last(text).unwrap(), expected, "{text:?}");
        }
        assert_eq!(alone("3,1,2\n6,4,5", LabelColumn::First, None).unwrap(), expected);
    }

    #[test]
    fn libsvm_from_one_and_from_zero() {
        let expected = (vec![1.0, -1.0], vec![0.5, 0.0, 0.0, 2.0], 2);
        assert_eq!(parse_last("1 1:0.5\n-1 2:2 # a note, with a comma\n").unwrap(), expected);
        assert_eq!(parse_last("1 0:0.5\n-1 1:2\n").unwrap(), expected);
        let (_, features, width) = alone("1 1:1\n0\n", LabelColumn::Last, Some(3)).unwrap();
        assert_eq!((width, features), (3, vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
        let (labels, features, _) = parse_last("0\n1 1:1 # a, b\n").unwrap();
        assert_eq!((labels, features), (vec![0.0, 1.0], vec![0.0, 1.0]), "an example without features comes first");
    }

    #[test]
    fn files_of_one_data_set_have_the_same_columns() {
        let table = |text| parse(text, LabelColumn::Last).unwrap();
        let (zero, one) = (table("1 0:5 1:6"), table("1 1:7"));
        let layout = Layout::of(&[&zero, &one], None);
        assert_eq!(zero.features(layout).unwrap(), [5.0, 6.0]);
        assert_eq!(one.features(layout).unwrap(), [0.0, 7.0], "the other file tells that indices start at 0");
        let (narrow, wide) = (table("1 1:5"), table("1 3:7"));
        let layout = Layout::of(&[&narrow, &wide], None);
        assert_eq!(narrow.features(layout).unwrap(), [5.0, 0.0, 0.0]);
        assert_eq!(wide.features(layout).unwrap(), [0.0, 0.0, 7.0]);
        let (csv, other) = (table("1,2,0"), table("1,2,3,0"));
        let layout = Layout::of(&[&csv, &other], None);
        assert_eq!(other.features(layout).unwrap_err(), "expected 2 features, found 3");
        assert!(csv.features(Layout::of(&[&csv], Some(5))).unwrap_err().contains("expected 5 features"));
        assert!(wide.features(layout).unwrap_err().contains("index 3 is beyond the 2 features"));
    }

    #[test]
    fn large_labels_stay_different() {
        let (labels, ..) = parse_last("1,16777216\n1,16777217").unwrap();
        assert_eq!(labels, [16_777_216.0, 16_777_217.0]);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, place) in [
            ("", "no example"),
            ("a,b\n", "only column names"),
            ("1,2\n1,2,3", "line 2: expected 2 columns, found 3"),
            ("1,2\n1,x", "line 2, column 2"),
            ("1,2\n\nnan,1", "line 3, column 1"),
            ("1,,2\n1,2,3", "line 1, column 2"),
            ("1,1e39,2", "line 1, column 2"),
            ("1 1:2\n1 3:inf", "line 2, index 3"),
            ("1 1:2\n1 3:1 2:1", "line 2: indices must ascend"),
            ("1 1:2\n1 3", "line 2: expected index:value"),
            ("1 1:2\n1 qid:3 2:1", "line 2: expected index:value"),
            ("7", "at least one feature"),
            ("1 1:1\n1 4294967295:1", "dense table"),
        ] {
            let error = parse_last(text).unwrap_err();
            assert!(error.contains(place), "{text:?}: {error}");
        }
        assert!(alone("1 5:1", LabelColumn::Last, Some(3)).unwrap_err().contains("beyond the 3 features"));
    }

    fn check(text: &str, width: Option<usize>) -> Result<(), TestCaseError> {
        if let Ok((labels, features, width)) = alone(text, LabelColumn::Last, width) {
            prop_assert_eq!(features.len(), width * labels.len());
            prop_assert!(features.iter().all(|feature| feature.is_finite()));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_text_gives_examples_or_an_error(text in "[0-9a-z:,.#\\- \n\\PC]{0,80}") {
            check(&text, None)?;
        }

        #[test]
        fn text_that_nearly_fits_gives_examples_or_an_error(
            text in "([0-9.e:,#\" \n-]|nan|inf|[a-b]| [0-9]:[0-9]|\n[0-9],[0-9]){0,60}",
            width in proptest::option::of(1_usize..20),
        ) {
            check(&text, width)?;
        }
    }
}
