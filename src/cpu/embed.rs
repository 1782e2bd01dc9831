//! Token embeddings.

use super::{Matrix, Turn};
use crate::call::TokenId;

impl Turn<'_> {
    /// Writes row `ids[i]` of `table` to row `i` of `out`.
    ///
    /// # Panics
    /// If an id isn't a row of `table`, or `out` isn't one row an id.
    pub fn embed(&self, table: &Matrix, ids: &[TokenId], out: &mut [f32]) {
        let width = table.columns();
        assert_eq!(out.len(), ids.len() * width, "embed: out is [{}, {width}]", ids.len());
        if out.is_empty() {
            return;
        }
        let work = out.len();
        self.rows(out, width, work, &|rows, out| {
            for (&id, out) in ids[rows].iter().zip(out.chunks_exact_mut(width)) {
                table.dequantize_row(id as usize, out);
            }
        });
    }
}
