//! Counts of rows with properties that can cause errors or poor results in other commands.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::text::reader::FileRecord;

/// A property of rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Bytes that are not UTF-8.
    Invalid,
    /// U+FFFD, which replaces bytes that are not UTF-8, here or in the program that wrote the file.
    Replacement,
    /// UTF-8 that was read as Latin-1 or Windows-1252 and encoded as UTF-8 again: "cafÃ©".
    Mojibake,
    /// Control characters other than a tab and the characters of `LineBreak`.
    Control,
    Tab,
    /// U+2028, U+2029, U+0085 or a carriage return inside a row: characters at which other tools end a line.
    LineBreak,
    /// A carriage return inside a row.
    LoneCr,
    /// An HTML entity or tag, such as `&amp;` or `<br>`.
    Markup,
    /// More bytes than `ReadOptions::max_line_bytes`; other commands refuse such a row.
    OverLong,
    /// More than 128 words: probably not one sentence.
    Long,
    /// Fewer than 3 words, but not blank.
    Short,
}

/// The names of the faults, in the order of the enumeration.
const NAMES: [&str; 11] = [
    "invalid",
    "replacement",
    "mojibake",
    "control",
    "tab",
    "line_break",
    "lone_cr",
    "markup",
    "over_long",
    "long",
    "short",
];

/// The number of rows with a fault, and the position of the first such row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    pub rows: u64,
    /// Line number in a text file, or row number in a table, from 1.
    pub first: Option<u64>,
    /// Path of the file that contains the first such row.
    pub file: Option<String>,
}

/// For each fault, the number of rows, and the number of the first such row in the corpus, from 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Tallies([(u64, Option<u64>); NAMES.len()]);

impl Tallies {
    /// Counts row number `row` if it has the fault.
    pub(super) fn note(&mut self, fault: Fault, row: u64, found: bool) {
        if found {
            self.add(fault as usize, 1, Some(row));
        }
    }

    /// Counts further rows with the fault.
    pub(super) fn add(&mut self, fault: usize, rows: u64, first: Option<u64>) {
        let tally = &mut self.0[fault];
        tally.0 += rows;
        tally.1 = tally.1.into_iter().chain(first).min();
    }

    /// Adds the tallies of another thread.
    pub(super) fn merge(&mut self, other: &Tallies) {
        for (fault, &(rows, first)) in other.0.iter().enumerate() {
            self.add(fault, rows, first);
        }
    }

    /// Returns the counts by name, with the positions in the files.
    pub(super) fn found(&self, files: &[FileRecord]) -> BTreeMap<&'static str, Found> {
        let place = |&(rows, first): &(u64, Option<u64>)| {
            let mut before = 0;
            let file = first.and_then(|first| {
                files.iter().find(|file| {
                    before += file.rows;
                    first < before
                })
            });
            Found {
                rows,
                first: first.zip(file).map(|(first, file)| first + file.rows - before + 1),
                file: file.map(|file| file.path.clone()),
            }
        };
        NAMES.into_iter().zip(self.0.iter().map(place)).collect()
    }
}
