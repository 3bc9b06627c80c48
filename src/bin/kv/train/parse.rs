//! Lines of CSV and libsvm files, into numbers. Any text gives examples or an error that names the line.

use std::fmt::Write as _;

use super::args::LabelColumn;

/// Examples as they stand in a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Raw {
    /// Feature values, row by row, `width` each.
    pub(super) features: Vec<f32>,
    pub(super) width: usize,
    pub(super) labels: Vec<f32>,
}

/// Most numbers a data set may have as a dense table: 4 GiB.
const NUMBERS_MAX: usize = 1 << 30;

/// Parses a file of either format; libsvm is recognised by its first `index:value`.
pub(super) fn parse(text: &str, label: LabelColumn, width: Option<usize>) -> Result<Raw, String> {
    let first = text.lines().map(str::trim).find(|line| is_content(line)).ok_or("there is no example in it")?;
    let is_libsvm = !first.contains(',') && first.split_whitespace().skip(1).any(|field| field.contains(':'));
    if is_libsvm { libsvm(text, width) } else { csv(text, label) }
}

fn is_content(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}

fn content(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())).filter(|(_, line)| is_content(line))
}

fn csv(text: &str, label: LabelColumn) -> Result<Raw, String> {
    let mut raw = Raw::default();
    let mut columns = None;
    for (position, (line, content)) in content(text).enumerate() {
        let fields: Vec<&str> = content.split(',').map(str::trim).collect();
        if position == 0 && fields.iter().any(|field| field.parse::<f32>().is_err()) {
            // Names of the columns.
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
        let mut numbers = Vec::with_capacity(expected);
        for (column, field) in fields.iter().enumerate() {
            numbers.push(number(field).map_err(|problem| format!("line {line}, column {}: {problem}", column + 1))?);
        }
        let at = if label == LabelColumn::First { 0 } else { expected - 1 };
        raw.labels.push(numbers.remove(at));
        raw.features.append(&mut numbers);
        raw.width = expected - 1;
        check_size(raw.features.len())?;
    }
    if raw.labels.is_empty() { Err("there is no example in it, only column names".to_owned()) } else { Ok(raw) }
}

fn libsvm(text: &str, width: Option<usize>) -> Result<Raw, String> {
    let mut rows: Vec<(usize, Vec<(u32, f32)>)> = Vec::new();
    let mut labels = Vec::new();
    let mut lowest = u32::MAX;
    let mut highest = 0;
    for (line, content) in content(text) {
        let content = content.split('#').next().unwrap_or_default();
        let mut fields = content.split_whitespace();
        let label = fields.next().unwrap_or_default();
        labels.push(number(label).map_err(|problem| format!("line {line}, label: {problem}"))?);
        let mut row: Vec<(u32, f32)> = Vec::new();
        for field in fields {
            let expected = || format!("line {line}: expected index:value, found '{}'", shortened(field));
            let (index, value) = field.split_once(':').ok_or_else(expected)?;
            let index: u32 = index.parse().map_err(|_| expected())?;
            let value = number(value).map_err(|problem| format!("line {line}, index {index}: {problem}"))?;
            if row.last().is_some_and(|(last, _)| *last >= index) {
                return Err(format!("line {line}: indices must ascend, {index} does not"));
            }
            lowest = lowest.min(index);
            highest = highest.max(index);
            row.push((index, value));
        }
        rows.push((line, row));
    }
    // Indices start at 1 by the format's custom, at 0 in some files.
    let base = u32::from(lowest > 0);
    let found = (highest + 1 - base.min(highest + 1)) as usize;
    let width = width.unwrap_or(found).max(1);
    check_size(rows.len().saturating_mul(width))?;
    let mut features = vec![0.0; rows.len() * width];
    for (target, (line, row)) in features.chunks_exact_mut(width).zip(rows) {
        for (index, value) in row {
            let slot = target.get_mut((index - base) as usize);
            *slot.ok_or_else(|| format!("line {line}: index {index} is beyond the {width} features there are"))? =
                value;
        }
    }
    Ok(Raw { features, width, labels })
}

fn number(text: &str) -> Result<f32, String> {
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

    fn parse_last(text: &str) -> Result<Raw, String> {
        parse(text, LabelColumn::Last, None)
    }

    #[test]
    fn csv_with_and_without_column_names() {
        let expected = Raw { features: vec![1.0, 2.0, 4.0, 5.0], width: 2, labels: vec![3.0, 6.0] };
        assert_eq!(parse_last("1,2,3\n4,5,6\n").unwrap(), expected);
        assert_eq!(parse_last("# note\na,b,c\r\n 1, 2,3\r\n\r\n4,5,6").unwrap(), expected);
        assert_eq!(parse("3,1,2\n6,4,5", LabelColumn::First, None).unwrap(), expected);
    }

    #[test]
    fn libsvm_from_one_and_from_zero() {
        let expected = Raw { features: vec![0.5, 0.0, 0.0, 2.0], width: 2, labels: vec![1.0, -1.0] };
        assert_eq!(parse_last("1 1:0.5\n-1 2:2 # note\n").unwrap(), expected);
        assert_eq!(parse_last("1 0:0.5\n-1 1:2\n").unwrap(), expected);
        let wide = parse("1 1:1\n0\n", LabelColumn::Last, Some(3)).unwrap();
        assert_eq!((wide.width, wide.features), (3, vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, place) in [
            ("", "no example"),
            ("a,b\n", "only column names"),
            ("1,2\n1,2,3", "line 2: expected 2 columns, found 3"),
            ("1,2\n1,x", "line 2, column 2"),
            ("1,2\n\nnan,1", "line 3, column 1"),
            ("1 1:2\n1 3:inf", "line 2, index 3"),
            ("1 1:2\n1 3:1 2:1", "line 2: indices must ascend"),
            ("1 1:2\n1 3", "line 2: expected index:value"),
            ("7", "at least one feature"),
        ] {
            let error = parse_last(text).unwrap_err();
            assert!(error.contains(place), "{text:?}: {error}");
        }
        assert!(parse("1 5:1", LabelColumn::Last, Some(3)).unwrap_err().contains("beyond the 3 features"));
        assert!(parse_last("1 1:1\n1 4000000000:1").unwrap_err().contains("dense table"));
    }

    proptest! {
        #[test]
        fn any_text_gives_examples_or_an_error(text in "[0-9a-z:,.#\\- \n\\PC]{0,80}") {
            if let Ok(raw) = parse_last(&text) {
                prop_assert_eq!(raw.features.len(), raw.width * raw.labels.len());
            }
        }
    }
}
