//! What commands print.

use std::io::Write as _;

/// Prints a text; a reader that has gone (`| head`) has what it wanted.
///
/// # Errors
/// It cannot be written, as on a full disk.
pub(crate) fn show(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(problem) if problem.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {}", yorozu_conf::os_error(&problem)))
        }
        _ => Ok(()),
    }
}

/// Rows below their heads, each column as wide as its widest cell; the last one is not padded.
pub(crate) fn table<const COLUMNS: usize>(
    heads: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> String {
    let heads = heads.map(str::to_owned);
    let all = || std::iter::once(&heads).chain(rows);
    let wide: [usize; COLUMNS] = std::array::from_fn(|at| {
        let cells = all().map(|row| row[at].chars().count());
        if at + 1 == COLUMNS { 0 } else { cells.max().unwrap_or(0) }
    });
    let mut out = String::new();
    for row in all() {
        let cells: Vec<_> =
            row.iter().zip(wide).map(|(cell, wide)| format!("{cell:<wide$}")).collect();
        out += cells.join("  ").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_stand_below_their_heads() {
        let rows = [["z".to_owned(), "a b".to_owned()], ["pages".to_owned(), String::new()]];
        assert_eq!(super::table(["ZONE", "KEY"], &rows), "ZONE   KEY\nz      a b\npages\n");
    }
}
