//! The views that stand-ins for sources and for parameters have in common.

/// Methods named as torch's, over an `apply` that takes any [`Op`](crate::Op).
macro_rules! view_methods {
    ($self:ident) => {
        /// `narrow(dim, start, length)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn narrow(&$self, dim: i64, start: i64, length: i64) -> Result<Self, CaptureError> {
            $self.apply(Op::Narrow { dim, start, length })
        }

        /// `select(dim, index)`; the dimension goes away.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn select(&$self, dim: i64, index: i64) -> Result<Self, CaptureError> {
            $self.apply(Op::Select { dim, index })
        }

        /// `tensor[items]`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn get(&$self, items: &[Index]) -> Result<Self, CaptureError> {
            $self.apply(Op::GetItem(items.to_vec()))
        }

        /// `view(shape)`; one size may be -1.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn view(&$self, shape: &[i64]) -> Result<Self, CaptureError> {
            $self.apply(Op::View(shape.to_vec()))
        }

        /// `transpose(dim0, dim1)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn transpose(&$self, dim0: i64, dim1: i64) -> Result<Self, CaptureError> {
            $self.apply(Op::Transpose(dim0, dim1))
        }

        /// `t()`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn t(&$self) -> Result<Self, CaptureError> {
            $self.apply(Op::T)
        }

        /// `permute(dims)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn permute(&$self, dims: &[i64]) -> Result<Self, CaptureError> {
            $self.apply(Op::Permute(dims.to_vec()))
        }

        /// `unsqueeze(dim)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn unsqueeze(&$self, dim: i64) -> Result<Self, CaptureError> {
            $self.apply(Op::Unsqueeze(dim))
        }

        /// `squeeze(dim)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn squeeze(&$self, dim: i64) -> Result<Self, CaptureError> {
            $self.apply(Op::Squeeze(Some(vec![dim])))
        }

        /// `unflatten(dim, sizes)`; one size may be -1.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn unflatten(&$self, dim: i64, sizes: &[i64]) -> Result<Self, CaptureError> {
            $self.apply(Op::Unflatten { dim, sizes: sizes.to_vec() })
        }

        /// All parts of `chunk(chunks, dim)`; as in torch, there may be fewer than asked for.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn chunk(&$self, chunks: i64, dim: i64) -> Result<Vec<Self>, CaptureError> {
            let count = $self.parts("chunk", |v| v.chunk_parts(chunks, dim))?.count();
            (0..count).map(|index| $self.apply(Op::Chunk { chunks, dim, index })).collect()
        }

        /// All parts of `split(size, dim)`.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn split(&$self, size: i64, dim: i64) -> Result<Vec<Self>, CaptureError> {
            let count = $self.parts("split", |v| v.split_parts(size, dim))?.count();
            (0..count).map(|index| $self.apply(Op::Split { size, dim, index })).collect()
        }

        /// All parts of `split(sizes, dim)`.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn split_sizes(&$self, sizes: &[i64], dim: i64) -> Result<Vec<Self>, CaptureError> {
            (0..sizes.len() as i64)
                .map(|index| $self.apply(Op::SplitSizes { sizes: sizes.to_vec(), dim, index }))
                .collect()
        }

        /// All parts of `unbind(dim)`.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn unbind(&$self, dim: i64) -> Result<Vec<Self>, CaptureError> {
            let at = $self.parts("unbind", |v| v.dim(dim))?;
            (0..$self.view.shape()[at]).map(|index| $self.apply(Op::Unbind { dim, index })).collect()
        }

        /// `movedim(source, destination)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn movedim(&$self, source: i64, destination: i64) -> Result<Self, CaptureError> {
            $self.apply(Op::MoveDim { source: vec![source], destination: vec![destination] })
        }

        /// `diagonal(offset, dim1, dim2)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn diagonal(&$self, offset: i64, dim1: i64, dim2: i64) -> Result<Self, CaptureError> {
            $self.apply(Op::Diagonal { offset, dim1, dim2 })
        }

        /// Sizes, in elements.
        pub fn shape(&$self) -> &[i64] {
            $self.view.shape()
        }
    };
}
pub(crate) use view_methods;
