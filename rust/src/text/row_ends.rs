//! Where rows end: at `\n` and nowhere else.
//!
//! `\r` at the end of a row is dropped; U+2028, U+2029, U+0085, `\x1c` to `\x1f` and a `\r` elsewhere are part of the
//! row. A text file that has `\r` but no `\n` is an error (`open_file.rs`), because it would be a single row.

/// Returns the rows of a text that begins with a row, without `\n`. A row may still end with `\r`.
pub(super) fn rows(text: &str) -> impl Iterator<Item = &str> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let end = memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len());
        start += end + 1;
        Some(&rest[..end])
    })
}

/// Returns a row without a final `\r`.
pub(super) fn without_final_cr(row: &str) -> &str {
    row.strip_suffix('\r').unwrap_or(row)
}

/// Whether `start`, the beginning of a file without `\n`, has `\r` before its last byte.
pub(super) fn has_cr_inside(start: &[u8]) -> bool {
    let inside = &start[..start.len().saturating_sub(1)];
    memchr::memchr(b'\r', inside).is_some()
}
