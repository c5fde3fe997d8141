//! A weight matrix, and products with it.
//!
//! The law: an element of a product is a sum in one fixed order. It depends neither on how many rows of activations are
//! multiplied at once nor on the number of threads, so that a model gives the same bits however it is split.

use rayon::prelude::*;
use restage_geometry::Dtype;

use crate::blocks::row_to_f32;

/// Partial sums of a dot product, by position modulo this: as wide as the widest registers.
const LANES: usize = 16;

/// Activation rows that share one pass over a row of weights.
const TILE: usize = 4;

/// Rows that a thread takes at a time: enough that handing them out costs nothing.
const ROWS: usize = 16;

/// `rows x columns` weights, as they are stored: row-major, each row whole blocks.
#[derive(Debug, Clone)]
pub struct Matrix {
    dtype: Dtype,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

impl Matrix {
    /// A matrix of these bytes; `None` where they are not as many as the shape takes.
    pub fn new(dtype: Dtype, rows: usize, columns: usize, bytes: Vec<u8>) -> Option<Matrix> {
        let row = dtype.bytes(columns as u64)?;
        (row.checked_mul(rows as u64)? == bytes.len() as u64).then_some(Matrix {
            dtype,
            rows,
            columns,
            bytes,
        })
    }

    /// Number of rows: elements of the result.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: elements of a row of activations.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Writes one row, `columns` elements.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, at: usize, out: &mut [f32]) {
        let size = self.bytes.len() / self.rows;
        row_to_f32(self.dtype, &self.bytes[at * size..][..size], out);
    }

    /// `out[t][r]` becomes row `r` times activation row `t`; both sides are row-major, of `columns` and of `rows`
    /// elements a row.
    ///
    /// # Panics
    /// When the lengths do not fit.
    pub fn multiply(&self, activations: &[f32], out: &mut [f32]) {
        let (rows, columns) = (self.rows, self.columns);
        let count = activations.len() / columns;
        assert_eq!((activations.len(), out.len()), (count * columns, count * rows));
        if count == 0 {
            return;
        }
        // By row of weights first, so that threads write apart from each other.
        let mut turned = vec![0.0; out.len()];
        turned.par_chunks_mut(ROWS * count).enumerate().for_each_init(
            || vec![0.0; columns],
            |weights, (chunk, out)| {
                for (r, out) in out.chunks_exact_mut(count).enumerate() {
                    self.row(chunk * ROWS + r, weights);
                    dots(weights, activations, out);
                }
            },
        );
        for (r, from) in turned.chunks_exact(count).enumerate() {
            for (t, &value) in from.iter().enumerate() {
                out[t * rows + r] = value;
            }
        }
    }
}

/// One row of weights times every activation row.
fn dots(weights: &[f32], activations: &[f32], out: &mut [f32]) {
    let columns = weights.len();
    let mut tiles = activations.chunks_exact(TILE * columns);
    let mut outs = out.chunks_exact_mut(TILE);
    for (tile, out) in (&mut tiles).zip(&mut outs) {
        let rows: [&[f32]; TILE] = std::array::from_fn(|t| &tile[t * columns..][..columns]);
        out.copy_from_slice(&dot(weights, rows));
    }
    for (row, out) in tiles.remainder().chunks_exact(columns).zip(outs.into_remainder()) {
        [*out] = dot(weights, [row]);
    }
}

/// Dot products of one row with several, each in the same order of additions.
pub fn dot<const N: usize>(weights: &[f32], rows: [&[f32]; N]) -> [f32; N] {
    let mut sums = [[0.0f32; LANES]; N];
    let (whole, rest) = weights.as_chunks::<LANES>();
    let parts = rows.map(|row| row.as_chunks::<LANES>());
    for (i, w) in whole.iter().enumerate() {
        for (sums, (row, _)) in sums.iter_mut().zip(&parts) {
            for lane in 0..LANES {
                sums[lane] += w[lane] * row[i][lane];
            }
        }
    }
    std::array::from_fn(|n| {
        for (lane, (w, x)) in rest.iter().zip(parts[n].1).enumerate() {
            sums[n][lane] += w * x;
        }
        // Halves onto each other: a tree, whose order is fixed.
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                sums[n][lane] += sums[n][lane + width];
            }
            width /= 2;
        }
        sums[n][0]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matrix(rows: usize, columns: usize) -> Matrix {
        let value = |i: usize| ((i * 7919 % 201) as f32 - 100.0) / 64.0;
        let bytes = (0..rows * columns).flat_map(|i| value(i).to_le_bytes()).collect();
        Matrix::new(Dtype::F32, rows, columns, bytes).unwrap()
    }

    proptest! {
        #[test]
        fn a_product_is_that_of_each_row_alone(rows in 1usize..40, columns in 1usize..70, count in 0usize..11) {
            let m = matrix(rows, columns);
            let x: Vec<f32> = (0..count * columns).map(|i| ((i * 31 % 17) as f32 - 8.0) / 8.0).collect();
            let mut all = vec![0.0; count * rows];
            m.multiply(&x, &mut all);
            let mut weights = vec![0.0; columns];
            for t in 0..count {
                let x = &x[t * columns..][..columns];
                let mut one = vec![0.0; rows];
                m.multiply(x, &mut one);
                prop_assert_eq!(&one[..], &all[t * rows..][..rows]);
                for (r, &found) in one.iter().enumerate() {
                    m.row(r, &mut weights);
                    let exact: f64 = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    prop_assert!((f64::from(found) - exact).abs() < 1e-3);
                }
            }
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let m = matrix(333, 67);
        let x: Vec<f32> = (0..5 * 67).map(|i| (i as f32).sin()).collect();
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![0.0; 5 * 333];
            pool.install(|| m.multiply(&x, &mut out));
            out
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn bytes_must_fit_the_shape() {
        assert!(Matrix::new(Dtype::F32, 2, 3, vec![0; 24]).is_some());
        assert!(Matrix::new(Dtype::F32, 2, 3, vec![0; 23]).is_none());
        assert!(Matrix::new(Dtype::Q4_0, 2, 33, vec![0; 36]).is_none());
    }
}
