//! Value operations against what torch made of them: bytes for bytes, except that any NaN is as good as
//! another. `data/values.json` is torch's answer, made by `data/make_values.py`.

use restage_geometry::{Dtype, Op, ValueOp};
use restage_wire::OpForm;
use serde_json::Value;

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// True where the elements are equal, or both are NaN.
fn same(dtype: Dtype, a: &[u8], b: &[u8]) -> bool {
    let bits = |x: &[u8]| x.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    // Exponent and mantissa: a NaN lies above infinity; e4m3fn has no infinity.
    let above = match dtype {
        Dtype::F64 => 0x7ff0_0000_0000_0000,
        Dtype::F32 => 0x7f80_0000,
        Dtype::F16 => 0x7c00,
        Dtype::BF16 => 0x7f80,
        Dtype::F8E5m2 => 0x7c,
        Dtype::F8E4m3 => 0x7e,
        _ => return a == b,
    };
    let sign = 1u64 << (a.len() * 8 - 1);
    let nan = |x: &[u8]| bits(x) & !sign > above;
    a == b || (nan(a) && nan(b))
}

fn float_of(dtype: Dtype, bytes: &[u8]) -> Option<f64> {
    match dtype {
        Dtype::F32 => Some(f32::from_le_bytes(bytes.try_into().ok()?).into()),
        Dtype::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

#[test]
fn every_value_agrees_with_torch() {
    let data: Value = serde_json::from_str(include_str!("data/values.json")).unwrap();
    let (mut wrong, mut values, mut undefined) = (Vec::new(), 0, 0);
    for case in data["cases"].as_array().unwrap() {
        let form: OpForm = serde_json::from_value(case["op"].clone()).unwrap();
        let Op::Value(op) = Op::from(form) else { panic!("{case}") };
        let from: Dtype = case["dtype"].as_str().unwrap().parse().unwrap();
        let Some(to) = case["to"].as_str() else {
            undefined += 1;
            if let Ok(to) = op.result(from) {
                wrong.push(format!("{} on {from} gives {to}, torch raises", case["op"]));
            }
            continue;
        };
        let to: Dtype = to.parse().unwrap();
        let input = bytes(&case["in"]);
        let (got_to, got) = match op.apply(from, &input) {
            Ok(result) => result,
            Err(e) => {
                wrong.push(format!("{} on {from}: {e}", case["op"]));
                continue;
            }
        };
        if got_to != to {
            wrong.push(format!("{} on {from} gives {got_to}, torch {to}", case["op"]));
            continue;
        }
        let expect = bytes(&case["out"]);
        assert_eq!(got.len(), expect.len());
        let (i, o) = (from.packing().bytes as usize, to.packing().bytes as usize);
        for ((x, g), e) in input.chunks(i).zip(got.chunks(o)).zip(expect.chunks(o)) {
            // Here not even two paths of one build of torch agree.
            if to == Dtype::U32 && float_of(from, x).is_some_and(|x| !(-1.0..4294967296.0).contains(&x)) {
                continue;
            }
            values += 1;
            if !same(to, g, e) {
                wrong.push(format!("{} on {from} {x:02x?}: {g:02x?}, torch {e:02x?}", case["op"]));
            }
        }
    }
    println!("{values} values as torch, {undefined} operations undefined as in torch");
    wrong.truncate(40);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every bit pattern of the 16-bit floats survives widening and narrowing.
#[test]
fn widening_is_exact() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for half in [Dtype::F16, Dtype::BF16] {
        for wide in [Dtype::F32, Dtype::F64] {
            let (_, up) = ValueOp::To(wide).apply(half, &all).unwrap();
            let (_, back) = ValueOp::To(half).apply(wide, &up).unwrap();
            assert!(all.chunks(2).zip(back.chunks(2)).all(|(a, b)| same(half, a, b)));
        }
    }
}

#[test]
fn cut_elements_and_unknown_types_are_refused() {
    assert!(ValueOp::Neg.apply(Dtype::F32, &[0; 6]).is_err());
    assert!(ValueOp::To(Dtype::F4).apply(Dtype::F32, &[0; 4]).is_err());
    assert!(ValueOp::To(Dtype::F32).apply(Dtype::Q4_0, &[0; 18]).is_err());
}
