//! The capture file: what a loader did, in JSON.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use restage_geometry::{Captured, Dest, Dtype, MAX_DIMS, Op, Param, Unsupported, View};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::json::{Head, MAX_ELEMENTS, Named, read};
use crate::tables::{CopyForm, FillForm, ParamForm, TableError};
use crate::to_form::WriteError;
use crate::{JsonPath, WireError, WireProblem};

/// The `format` of a capture file.
pub const CAPTURE_FORMAT: &str = "restage-capture";

/// The `version` of a capture file.
pub const CAPTURE_VERSION: u64 = 1;

/// A capture file in full. Keys in the order in which they are written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureFile {
    format: String,
    version: u64,
    params: Named<ParamForm>,
    #[serde(default, skip_serializing_if = "is_empty")]
    sources: Named<ParamForm>,
    copies: Vec<CopyForm>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fills: Vec<FillForm>,
    #[serde(default, skip_serializing_if = "is_empty")]
    unsupported: Named<UnsupportedForm>,
}

fn is_empty<T>(named: &Named<T>) -> bool {
    named.0.is_empty()
}

/// Why a source is unsupported: the operation alone, or with the parameters that were to receive it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct UnsupportedForm {
    op: String,
    params: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnsupportedFields {
    op: String,
    #[serde(default)]
    params: Vec<String>,
}

impl<'de> Deserialize<'de> for UnsupportedForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = UnsupportedForm;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an operation, or an object of op and params")
            }

            fn visit_str<E: Error>(self, op: &str) -> Result<UnsupportedForm, E> {
                Ok(UnsupportedForm { op: op.to_owned(), params: Vec::new() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<UnsupportedForm, A::Error> {
                let fields = UnsupportedFields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(UnsupportedForm { op: fields.op, params: fields.params })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl CaptureFile {
    /// Reads a capture file, or a bare list of copies. In a bare list nothing says how large a parameter is: it
    /// becomes the smallest flat one that holds its copies, of the copies' `dest_dtype`, which they must have.
    ///
    /// # Errors
    /// [`WireError`] with the path of what is wrong. Whether a chain is one that torch accepts is not asked here,
    /// since that takes the source's shape: the planner refuses the source then.
    ///
    /// ```
    /// use restage_wire::CaptureFile;
    /// let json = br#"{
    ///     "format": "restage-capture", "version": 1,
    ///     "params": {"p": {"dtype": "BF16", "shape": [2, 4]}},
    ///     "copies": [{"source": "w", "ops": [{"op": "narrow", "dim": 0, "start": "6", "length": 2}],
    ///                 "param": "p", "dest_offset": 0, "dest_shape": [2, 4], "dest_stride": [4, 1]}]
    /// }"#;
    /// let error = CaptureFile::parse(json).unwrap_err().to_string();
    /// assert!(error.starts_with("copies[0].ops[0].start: invalid type: string \"6\", expected i64"), "{error}");
    /// ```
    pub fn parse(json: &[u8]) -> Result<Captured, WireError> {
        let top = JsonPath::top();
        if json.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[') {
            let copies: Vec<CopyForm> = read(json)?;
            let params = smallest_params(&copies)?;
            return Builder::new(params)?.captured(&copies, &top, &[], &Named::default(), Named::default());
        }
        read::<Head>(json)?.check(CAPTURE_FORMAT, CAPTURE_VERSION)?;
        let file: CaptureFile = read(json)?;
        let mut params = Vec::with_capacity(file.params.0.len());
        for (name, form) in &file.params.0 {
            let path = top.key("params").key(name);
            check_shape(&form.shape, &path.key("shape"))?;
            params.push(form.param(name).map_err(|e| WireError::at(path.key("dtype"), e))?);
        }
        let copies = top.key("copies");
        Builder::new(params)?.captured(&file.copies, &copies, &file.fills, &file.unsupported, file.sources)
    }
}

/// The parameters that bare copies go to, in the order in which they appear.
fn smallest_params(copies: &[CopyForm]) -> Result<Vec<Param>, WireError> {
    let mut params: Vec<Param> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (at, copy) in copies.iter().enumerate() {
        let path = JsonPath::top().at(at);
        let dtype = dtype_of(copy, &path)?.ok_or_else(|| {
            WireError::at(path.key("dest_dtype"), WireProblem::NoDtype { param: copy.param.clone() })
        })?;
        let (dest, _) = dest_of(copy.dest_offset, &copy.dest_shape, &copy.dest_stride, &path)?;
        let end = positions(&dest).ok_or_else(|| no_positions(&dest, &path))?.1;
        let at = *index.entry(&copy.param).or_insert_with(|| {
            params.push(Param { name: copy.param.clone(), dtype, shape: vec![0] });
            params.len() - 1
        });
        params[at].shape[0] = params[at].shape[0].max(end);
    }
    Ok(params)
}

fn dtype_of(copy: &CopyForm, path: &JsonPath) -> Result<Option<Dtype>, WireError> {
    let dtype = copy.dest_dtype.as_deref().map(str::parse::<Dtype>).transpose();
    dtype.map_err(|e| WireError::at(path.key("dest_dtype"), TableError::from(e)))
}

fn check_shape(shape: &[i64], path: &JsonPath) -> Result<i64, WireError> {
    let view = View::whole(shape).map_err(|problem| WireError::at(path.clone(), problem))?;
    Ok(view.numel())
}

/// A destination and its number of elements.
fn dest_of(offset: i64, shape: &[i64], strides: &[i64], path: &JsonPath) -> Result<(Dest, i64), WireError> {
    let numel = check_shape(shape, &path.key("dest_shape"))?;
    if shape.len() != strides.len() {
        let problem = WireProblem::Strides { ndim: shape.len(), strides: strides.len() };
        return Err(WireError::at(path.key("dest_stride"), problem));
    }
    let dest = Dest { offset, shape: shape.to_vec(), strides: strides.to_vec() };
    // Whether it lies in its parameter is another question; this asks whether it lies anywhere.
    positions(&dest).ok_or_else(|| no_positions(&dest, path))?;
    Ok((dest, numel))
}

/// First position and one past the last, in elements; `None` below 0 or past 63 bits. A destination of no
/// elements has its offset for both.
fn positions(dest: &Dest) -> Option<(i64, i64)> {
    let (mut low, mut high) = (dest.offset, dest.offset);
    if !dest.shape.contains(&0) {
        for (&n, &stride) in dest.shape.iter().zip(&dest.strides) {
            let reach = if n > 1 { stride.checked_mul(n - 1)? } else { 0 };
            low = low.checked_add(reach.min(0))?;
            high = high.checked_add(reach.max(0))?;
        }
        high = high.checked_add(1)?;
    }
    (low >= 0).then_some((low, high))
}

fn no_positions(dest: &Dest, path: &JsonPath) -> WireError {
    let Dest { offset, shape, strides } = dest.clone();
    WireError::at(path.key("dest_offset"), WireProblem::Positions { offset, shape, strides })
}

/// Parameters by name, and what is counted on the way.
struct Builder {
    captured: Captured,
    index: HashMap<String, usize>,
    /// Elements of each parameter.
    numel: Vec<i64>,
}

impl Builder {
    fn new(params: Vec<Param>) -> Result<Self, WireError> {
        let index = params.iter().enumerate().map(|(at, p)| (p.name.clone(), at)).collect();
        // Every shape has been checked, so that the product fits.
        let numel: Vec<i64> = params.iter().map(|p| p.shape.iter().product()).collect();
        let path = JsonPath::top().key("params");
        let mut total = 0;
        for (param, &numel) in params.iter().zip(&numel) {
            count(&mut total, numel, "the parameters", &path.key(&param.name))?;
        }
        Ok(Builder { captured: Captured { params, ..Captured::default() }, index, numel })
    }

    fn captured(
        mut self,
        copies: &[CopyForm],
        copies_at: &JsonPath,
        fills: &[FillForm],
        unsupported: &Named<UnsupportedForm>,
        sources: Named<ParamForm>,
    ) -> Result<Captured, WireError> {
        let top = JsonPath::top();
        // One allocation a source, not one a copy.
        let mut names: BTreeMap<Arc<str>, ()> = BTreeMap::new();
        let mut total = 0;
        for (at, form) in copies.iter().enumerate() {
            let path = copies_at.at(at);
            let (param, numel) = self.dest(form.parts(), &path)?;
            count(&mut total, numel, "the copies", &path)?;
            let (expected, found) = (self.captured.params[param].dtype, dtype_of(form, &path)?);
            if let Some(found) = found.filter(|&found| found != expected) {
                let problem = WireProblem::OtherDtype { param: form.param.clone(), expected, found };
                return Err(WireError::at(path.key("dest_dtype"), problem));
            }
            let mut copy = form.copy(param);
            for (k, op) in copy.ops.iter().enumerate() {
                check_op(op, &path.key("ops").at(k))?;
            }
            match names.get_key_value(&copy.source) {
                Some((name, ())) => copy.source = name.clone(),
                None => drop(names.insert(copy.source.clone(), ())),
            }
            self.captured.copies.push(copy);
        }
        let (mut total, mut least, most) = (0, 0, copies.len());
        for (at, form) in fills.iter().enumerate() {
            let path = top.key("fills").at(at);
            let (param, numel) = self.dest(form.parts(), &path)?;
            count(&mut total, numel, "the fills", &path)?;
            let fill = form.fill(param, self.captured.params[param].dtype);
            let fill = fill.map_err(|e| WireError::at(path.key("element"), e))?;
            if !(least..=most).contains(&fill.after) {
                let problem = WireProblem::Order { after: fill.after, least, most };
                return Err(WireError::at(path.key("after"), problem));
            }
            least = fill.after;
            self.captured.fills.push(fill);
        }
        for (source, form) in &unsupported.0 {
            let path = top.key("unsupported").key(source);
            let params = form.params.iter().enumerate();
            let params = params.map(|(at, name)| self.param(name, || path.key("params").at(at)));
            let entry = Unsupported { op: form.op.clone(), params: params.collect::<Result<_, _>>()? };
            self.captured.unsupported.insert(source.as_str().into(), entry);
        }
        for (source, form) in &sources.0 {
            let path = top.key("sources").key(source);
            check_shape(&form.shape, &path.key("shape"))?;
            let dtype =
                form.dtype.parse().map_err(|e| WireError::at(path.key("dtype"), TableError::Dtype(e)))?;
            self.captured.sources.insert(source.as_str().into(), (dtype, form.shape.clone()));
        }
        Ok(self.captured)
    }

    fn param(&self, name: &str, path: impl Fn() -> JsonPath) -> Result<usize, WireError> {
        let found = self.index.get(name).copied();
        found.ok_or_else(|| WireError::at(path(), WireProblem::NoParam(name.to_owned())))
    }

    /// The parameter of a destination, which must lie in it, and the destination's number of elements.
    fn dest(
        &self,
        (name, offset, shape, strides): (&str, i64, &[i64], &[i64]),
        path: &JsonPath,
    ) -> Result<(usize, i64), WireError> {
        let param = self.param(name, || path.key("param"))?;
        let (dest, numel) = dest_of(offset, shape, strides, path)?;
        dest.check(self.numel[param]).map_err(|e| WireError::at(path.clone(), e))?;
        Ok((param, numel))
    }
}

fn count(total: &mut i64, more: i64, what: &'static str, path: &JsonPath) -> Result<(), WireError> {
    *total = total
        .checked_add(more)
        .filter(|&sum| sum <= MAX_ELEMENTS)
        .ok_or_else(|| WireError::at(path.clone(), WireProblem::TooMany { what, limit: MAX_ELEMENTS }))?;
    Ok(())
}

/// Refuses shapes of too many dimensions, which no source could make right. Everything else about a chain depends
/// on the source's shape.
fn check_op(op: &Op, path: &JsonPath) -> Result<(), WireError> {
    let (field, ndim) = match op {
        Op::View(s) | Op::Reshape(s) | Op::Expand(s) | Op::BroadcastTo(s) => ("shape", s.len()),
        Op::Permute(dims) => ("dims", dims.len()),
        Op::Unflatten { sizes, .. } => ("sizes", sizes.len()),
        _ => return Ok(()),
    };
    if ndim > MAX_DIMS {
        let problem = restage_geometry::OpProblem::TooManyDims { ndim };
        return Err(WireError::at(path.key(field), problem));
    }
    Ok(())
}

/// Writes a capture as a file, one parameter, copy or fill a line.
///
/// # Errors
/// [`WriteError`] for what no file can say: an opaque operation in a chain, an index past the parameters, fills
/// that are not in their order.
pub fn write_capture(captured: &Captured) -> Result<String, WriteError> {
    let params = &captured.params;
    let name = |what: &'static str, at: usize, param: usize| match params.get(param) {
        Some(p) => Ok(p.name.as_str()),
        None => Err(WriteError::Param { what, at, param, params: params.len() }),
    };
    let mut seen = std::collections::HashSet::new();
    if let Some(twice) = params.iter().find(|p| !seen.insert(&p.name)) {
        return Err(WriteError::Twice(twice.name.clone()));
    }
    let mut copies = Vec::with_capacity(captured.copies.len());
    for (at, copy) in captured.copies.iter().enumerate() {
        let form = CopyForm::of(copy, name("copy", at, copy.param)?).map_err(|op| WriteError::Op {
            copy: at,
            source_name: copy.source.to_string(),
            at: op,
            op: copy.ops[op].name().to_owned(),
        })?;
        copies.push(form);
    }
    let mut fills: Vec<FillForm> = Vec::with_capacity(captured.fills.len());
    let (mut least, most) = (0, captured.copies.len());
    for (at, fill) in captured.fills.iter().enumerate() {
        if !(least..=most).contains(&fill.after) {
            return Err(WriteError::Order { at, after: fill.after, least, most });
        }
        least = fill.after;
        fills.push(FillForm::of(fill, name("fill", at, fill.param)?));
    }
    let mut unsupported = Vec::new();
    for (at, (source, entry)) in captured.unsupported.iter().enumerate() {
        let params = entry.params.iter().map(|&p| Ok(name("unsupported source", at, p)?.to_owned()));
        let params = params.collect::<Result<_, WriteError>>()?;
        unsupported.push((source.to_string(), UnsupportedForm { op: entry.op.clone(), params }));
    }
    let shaped =
        |dtype: Dtype, shape: &[i64]| ParamForm { dtype: dtype.name().into(), shape: shape.to_vec() };
    let sources = captured.sources.iter();
    let file = CaptureFile {
        format: CAPTURE_FORMAT.to_owned(),
        version: CAPTURE_VERSION,
        params: Named(params.iter().map(|p| (p.name.clone(), ParamForm::from(p))).collect()),
        sources: Named(sources.map(|(name, (d, s))| (name.to_string(), shaped(*d, s))).collect()),
        copies,
        fills,
        unsupported: Named(unsupported),
    };
    Ok(crate::lines::write(&file))
}
