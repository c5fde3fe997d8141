//! Copies that go past the caches, for destinations far larger than them.
//!
//! `memcpy` does so by itself for one long copy, but not for many runs of a few kilobytes, where it first reads
//! every line that it is about to overwrite; and the processor's own prefetching starts afresh at each run.
//!
//! This is the one file of the crate with `unsafe`: the stores and the prefetching are intrinsics. Every pointer
//! comes from a slice and stays inside of it.
#![allow(unsafe_code)]

/// Bytes of a cache line, and of one block that is stored at once.
const LINE: usize = 64;

/// Copies `src` to `dst`, which are as long as each other, and asks for the lines of `next`, which will be
/// copied from after it. [`settle`] must follow before anyone else may look.
#[cfg(target_arch = "x86_64")]
pub(crate) fn copy(dst: &mut [u8], src: &[u8], next: &[u8]) {
    use std::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128};

    let head = dst.as_ptr().align_offset(LINE).min(dst.len());
    let (dst_head, dst) = dst.split_at_mut(head);
    let (src_head, src) = src.split_at(head);
    dst_head.copy_from_slice(src_head);
    let mut ahead = next.chunks(LINE);
    let (mut to, mut from) = (dst.chunks_exact_mut(LINE), src.chunks_exact(LINE));
    for (to, from) in (&mut to).zip(&mut from) {
        if let Some(line) = ahead.next() {
            // SAFETY: a prefetch of an address inside of a slice; it has no effect that can be seen.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
        for (to, from) in to.chunks_exact_mut(16).zip(from.chunks_exact(16)) {
            // SAFETY: both are 16 bytes long; `to` is aligned to 16, since the blocks start at a line.
            unsafe {
                let value = _mm_loadu_si128(from.as_ptr().cast::<__m128i>());
                _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>(), value);
            }
        }
    }
    to.into_remainder().copy_from_slice(from.remainder());
}

/// Makes the copies before visible in their order.
#[cfg(target_arch = "x86_64")]
pub(crate) fn settle() {
    // SAFETY: a fence; it takes nothing.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Elsewhere a plain copy.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn copy(dst: &mut [u8], src: &[u8], _next: &[u8]) {
    dst.copy_from_slice(src);
}

/// Elsewhere nothing.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn settle() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied() {
        let src: Vec<u8> = (0..400).map(|i| (i % 251) as u8).collect();
        for from in [0, 1, 15, 64] {
            for to in [0, 1, 16, 63, 64] {
                for len in [0, 1, 15, 16, 63, 64, 65, 128, 200] {
                    let mut dst = vec![0xee; 400];
                    copy(&mut dst[to..to + len], &src[from..from + len], &src[300..]);
                    settle();
                    assert_eq!(dst[to..to + len], src[from..from + len]);
                    assert!(dst[..to].iter().chain(&dst[to + len..]).all(|&b| b == 0xee));
                }
            }
        }
    }
}
