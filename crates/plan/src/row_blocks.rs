//! A catalog of what nobody has published yet: every source cut by rows over as many sessions.

use std::sync::Arc;

use restage_geometry::{Dtype, Region};

use crate::source::{Catalog, CatalogError, CatalogProblem, Shard, Source};

impl Catalog {
    /// Publishes every one of these sources (name, dtype, shape in elements) along its first dimension, as `torch.chunk` and
    /// FSDP cut it: blocks of `ceil(rows / sessions)` rows, so that the last ones can be shorter or nothing at all. A
    /// block that is nothing is left out. A source of no dimensions lies whole on the first session.
    ///
    /// Within a session blocks follow each other from address 0, in the order of the sources.
    ///
    /// # Errors
    /// [`CatalogError`] with the source: a negative size, a name that comes twice, more bytes than 64 bits can address.
    pub fn row_blocks<'a>(
        sources: impl IntoIterator<Item = (&'a str, Dtype, &'a [i64])>,
        sessions: &[Arc<str>],
    ) -> Result<Catalog, CatalogError> {
        let mut catalog = Catalog::new();
        let mut next = vec![0u64; sessions.len()];
        for (name, dtype, shape) in sources {
            let error = |problem| CatalogError { source_name: name.to_owned(), problem };
            let whole = Region::whole(shape).map_err(|e| error(e.into()))?;
            let rows = shape.first().copied().unwrap_or(1);
            let block = (rows as u64).div_ceil(sessions.len().max(1) as u64).max(1) as i64;
            let mut shards = Vec::with_capacity(sessions.len());
            for (i, session) in sessions.iter().enumerate() {
                // No block starts past the rows, and there are fewer than 2^63 of those.
                let start = (i as i64).saturating_mul(block).min(rows);
                let len = block.min(rows - start);
                if len == 0 {
                    break;
                }
                let region = match shape.is_empty() {
                    true => whole.clone(),
                    false => {
                        let (mut from, mut size) = (vec![0; shape.len()], shape.to_vec());
                        (from[0], size[0]) = (start, len);
                        Region::new(&from, &size).map_err(|e| error(e.into()))?
                    }
                };
                let addr = next[i];
                let end =
                    region.numel().and_then(|n| dtype.bytes(n as u64)).and_then(|n| addr.checked_add(n));
                let Some(end) = end else {
                    return Err(error(CatalogProblem::Address { region, session: session.clone(), addr }));
                };
                next[i] = end;
                shards.push(Shard { region, session: session.clone(), addr, digest: None });
            }
            catalog.insert(name, Source { dtype, shape: shape.to_vec(), shards })?;
        }
        Ok(catalog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(shape: &[i64], sessions: usize) -> Vec<(String, i64, i64, u64)> {
        let names: Vec<Arc<str>> = (0..sessions).map(|i| format!("t{i}").into()).collect();
        let sources = [("a", Dtype::F32, &[2i64, 3][..]), ("w", Dtype::BF16, shape)];
        let catalog = Catalog::row_blocks(sources, &names).unwrap();
        let shards = &catalog.get("w").unwrap().shards;
        let rows = |s: &Shard| {
            let (start, end) = (s.region.start(), s.region.end());
            (
                s.session.to_string(),
                start.first().copied().unwrap_or(0),
                end.first().copied().unwrap_or(1),
                s.addr,
            )
        };
        shards.iter().map(rows).collect()
    }

    #[test]
    fn rows_fall_on_sessions_as_chunks_do() {
        let at = |rows: &[(&str, i64, i64, u64)]| {
            rows.iter().map(|&(s, a, b, addr)| (s.to_owned(), a, b, addr)).collect::<Vec<_>>()
        };
        // The first two hold a row of three f32 each already.
        assert_eq!(cut(&[6, 5], 3), at(&[("t0", 0, 2, 12), ("t1", 2, 4, 12), ("t2", 4, 6, 0)]));
        assert_eq!(cut(&[7], 3), at(&[("t0", 0, 3, 12), ("t1", 3, 6, 12), ("t2", 6, 7, 0)]));
        // torch.chunk(5, 4) gives 2, 2, 1.
        assert_eq!(cut(&[5], 4), at(&[("t0", 0, 2, 12), ("t1", 2, 4, 12), ("t2", 4, 5, 0)]));
        assert_eq!(cut(&[1, 4], 3), at(&[("t0", 0, 1, 12)]));
        assert_eq!(cut(&[], 3), at(&[("t0", 0, 1, 12)]));
        assert_eq!(cut(&[0, 4], 3), []);
        assert_eq!(cut(&[4], 0), []);
    }

    #[test]
    fn what_cannot_be_addressed_is_refused_by_name() {
        let names: [Arc<str>; 1] = ["t0".into()];
        for (shape, dtype) in
            [(&[1i64 << 62, 2][..], Dtype::F32), (&[-1], Dtype::F32), (&[1 << 62], Dtype::F32)]
        {
            let error = Catalog::row_blocks([("w", dtype, shape)], &names).unwrap_err();
            assert_eq!(error.source_name, "w");
        }
        let twice = [("w", Dtype::F32, &[1i64][..]), ("w", Dtype::F32, &[1][..])];
        assert_eq!(Catalog::row_blocks(twice, &names).unwrap_err().problem, CatalogProblem::Duplicate);
    }
}
