//! Replays that change values: elements are gathered, changed, and scattered.

use restage_geometry::{Dtype, ValueError};
use restage_nest::Run;
use restage_plan::ReplayStep;

/// Elements that are changed together: enough to forget the cost of each call, few enough for a cache.
const TOGETHER: u64 = 8192;

/// Carries out a step that changes values, from a staging to a parameter. Both buffers hold what the plan says.
///
/// # Errors
/// [`ValueError`] where an operation is not defined for its type; the parameter may be written in part then.
pub(crate) fn convert(step: &ReplayStep, staging: &[u8], param: &mut [u8]) -> Result<(), ValueError> {
    let mut waiting: Vec<Run> = Vec::new();
    let mut elements = 0;
    for mut run in step.nests.iter().flat_map(|nest| nest.runs()) {
        while run.len > 0 {
            let len = run.len.min(TOGETHER - elements);
            waiting.push(Run { len, ..run });
            elements += len;
            run = Run { src: run.src + len, dst: run.dst + len, len: run.len - len };
            if elements == TOGETHER {
                change(step, &waiting, staging, param)?;
                waiting.clear();
                elements = 0;
            }
        }
    }
    change(step, &waiting, staging, param)
}

fn change(step: &ReplayStep, runs: &[Run], staging: &[u8], param: &mut [u8]) -> Result<(), ValueError> {
    // Types whose values are known have no blocks.
    let size = |dtype: Dtype| dtype.packing().bytes as usize;
    let (read, write) = (size(step.from), size(step.to));
    let elements: usize = runs.iter().map(|r| r.len as usize).sum();
    let mut bytes = Vec::with_capacity(elements * read);
    for r in runs {
        bytes.extend_from_slice(&staging[r.src as usize * read..][..r.len as usize * read]);
    }
    let mut dtype = step.from;
    for op in &step.values {
        (dtype, bytes) = op.apply(dtype, &bytes)?;
    }
    let mut rest = &bytes[..];
    for r in runs {
        let (head, tail) = rest.split_at(r.len as usize * write);
        param[r.dst as usize * write..][..head.len()].copy_from_slice(head);
        rest = tail;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use restage_geometry::{Scalar, ValueOp};
    use restage_nest::{Loop, Nest};

    #[test]
    fn elements_are_changed_in_their_places() {
        // A transposed 3 x 20,000 matrix, negated and doubled on its way from bytes to F32.
        let (rows, cols) = (3u64, 20_000u64);
        let staging: Vec<u8> = (0..rows * cols).map(|i| (i % 251) as u8).collect();
        let loops = vec![
            Loop { count: rows, src: cols as i64, dst: 1 },
            Loop { count: cols, src: 1, dst: rows as i64 },
        ];
        let step = ReplayStep {
            param: 0,
            from: Dtype::U8,
            values: vec![
                ValueOp::To(Dtype::F32),
                ValueOp::Neg,
                ValueOp::Mul(Scalar::Int(2)),
                ValueOp::To(Dtype::F16),
            ],
            to: Dtype::F16,
            nests: vec![Nest { src: 0, dst: 0, run: 1, loops }],
        };
        let mut param = vec![0xee; (2 * rows * cols) as usize];
        convert(&step, &staging, &mut param).unwrap();
        for (i, value) in param.chunks_exact(2).enumerate() {
            let (c, r) = (i as u64 / rows, i as u64 % rows);
            let from = f32::from(staging[(r * cols + c) as usize]);
            assert_eq!(value, half::f16::from_f32(-2.0 * from).to_le_bytes(), "element {i}");
        }
    }

    #[test]
    fn undefined_operations_are_refused() {
        let nests = vec![Nest::contiguous(0, 0, 4)];
        let values = vec![ValueOp::Neg];
        let step = ReplayStep { param: 0, from: Dtype::Bool, values, to: Dtype::Bool, nests };
        assert!(convert(&step, &[0; 4], &mut [0; 4]).is_err());
    }
}
