//! Counts of rows with properties that can cause errors or poor results in other commands.

use serde::Serialize;

use crate::text::reader::FileRecord;

/// The number of rows with a certain property, and the position of the first such row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    pub rows: u64,
    /// Position of the first such row in its file, from 1: the line number in a text file, or the row number in a
    /// table.
    pub first: Option<u64>,
    /// Path of the file that contains the first such row.
    pub file: Option<String>,
}

impl Found {
    /// Converts a tally: finds the file that contains the first such row, and the row's number in that file.
    pub(super) fn new(tally: &Tally, files: &[FileRecord]) -> Self {
        let mut found = Found { rows: tally.rows, ..Found::default() };
        let mut before = 0;
        for file in files {
            if let Some(row) = tally.first.filter(|row| *row - before < file.rows) {
                found.first = Some(row - before + 1);
                found.file = Some(file.path.clone());
                break;
            }
            before += file.rows;
        }
        found
    }
}

/// The number of rows with a certain property, and the number of the first such row in the corpus, from 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) rows: u64,
    pub(super) first: Option<u64>,
}

impl Tally {
    /// Counts row number `row` if `found` is true, that is, if the row has the property.
    pub(super) fn note(&mut self, row: u64, found: bool) {
        if found {
            self.rows += 1;
            self.first = Some(self.first.map_or(row, |first| first.min(row)));
        }
    }

    /// Adds the tally of another thread.
    pub(super) fn add(&mut self, other: &Tally) {
        self.rows += other.rows;
        self.first = match (self.first, other.first) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// Counts of rows by property. `F` is [`Found`], or `Tally` while rows are counted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults<F = Found> {
    /// Bytes that are not UTF-8.
    pub invalid: F,
    /// U+FFFD, the character that replaces bytes that are not UTF-8. They were replaced either while this file was
    /// read, or earlier by the program that wrote it.
    pub replacement: F,
    /// UTF-8 that was read as Latin-1 or Windows-1252 and encoded as UTF-8 again: "cafÃ©".
    pub mojibake: F,
    /// Control characters other than a tab and the characters of `line_break`.
    pub control: F,
    /// A tab.
    pub tab: F,
    /// U+2028, U+2029, U+0085 or a carriage return inside a row: characters at which other tools end a line.
    pub line_break: F,
    /// A carriage return inside a row.
    pub lone_cr: F,
    /// An HTML entity or tag, such as `&amp;` or `<br>`.
    pub markup: F,
    /// More bytes than `ReadOptions::max_line_bytes`; other commands refuse such a row.
    pub over_long: F,
    /// More than 128 words: probably not one sentence.
    pub long: F,
    /// Fewer than 3 words, but not blank.
    pub short: F,
}

impl<F> Faults<F> {
    /// Converts each count with `convert`.
    pub(super) fn map<G>(self, mut convert: impl FnMut(F) -> G) -> Faults<G> {
        Faults {
            invalid: convert(self.invalid),
            replacement: convert(self.replacement),
            mojibake: convert(self.mojibake),
            control: convert(self.control),
            tab: convert(self.tab),
            line_break: convert(self.line_break),
            lone_cr: convert(self.lone_cr),
            markup: convert(self.markup),
            over_long: convert(self.over_long),
            long: convert(self.long),
            short: convert(self.short),
        }
    }

    /// Returns references to all counts.
    pub(super) fn all(&mut self) -> [&mut F; 11] {
        [
            &mut self.invalid,
            &mut self.replacement,
            &mut self.mojibake,
            &mut self.control,
            &mut self.tab,
            &mut self.line_break,
            &mut self.lone_cr,
            &mut self.markup,
            &mut self.over_long,
            &mut self.long,
            &mut self.short,
        ]
    }
}
