//! The tile product with AVX2 (6 × 16 tiles) and AVX-512 (14 × 32 tiles).
//!
//! One kernel, generic over the vector type; `#[target_feature]` on the functions that `level!` defines is
//! what turns the `inline(always)` bodies into vector code.

use std::arch::x86_64::*;

use super::super::vector::Vector;
use super::{Product, TileStart, parts};

/// Computes a tile of at most [`Register::ROWS`] rows and two vectors: `(task, repetition, row, column, columns)`.
type Kernel = unsafe fn(&mut Product<'_, f32>, usize, usize, usize, usize);

/// Defines the product of a level, each kernel as a function of its own: one for all took a minute to compile.
macro_rules! level {
    ($name:ident: $v:ty, $features:literal, $($rows:literal)*) => {
        /// # Safety
        /// The CPU has the level's features, and the task's bounds were checked.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(task: Product<'_, f32>) {
            #[target_feature(enable = $features)]
            unsafe fn kernel<const P: usize, const N: usize, const PART: bool, const UNIT: bool>(
                t: &mut Product<'_, f32>, k: usize, r0: usize, j0: usize, cols: usize,
            ) {
                // SAFETY: the caller's promises are the callee's requirements.
                unsafe { tile::<$v, P, N, PART, UNIT>(t, k, r0, j0, cols) }
            }
            // In the order of `kind_of`, by rows.
            const KERNELS: [[Kernel; <$v as Register>::ROWS]; KINDS] = [
                [$(kernel::<$rows, 2, false, true>),*],
                [$(kernel::<$rows, 2, false, false>),*],
                [$(kernel::<$rows, 1, false, true>),*],
                [$(kernel::<$rows, 1, false, false>),*],
                [$(kernel::<$rows, 2, true, false>),*],
                [$(kernel::<$rows, 1, true, false>),*],
            ];
            // SAFETY: the caller's promises are the callee's requirements.
            unsafe { panels::<$v, { <$v as Register>::ROWS }>(task, &KERNELS) }
        }
    };
}

level!(avx512: __m512, "avx512f,avx512vl,avx2,fma", 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
level!(avx2: __m256, "avx2,fma", 1 2 3 4 5 6);

/// What a tile needs of a vector register besides [`Vector`]'s operations.
///
/// # Safety
/// Every function requires the vector's instruction set, and valid pointers for the lanes it touches.
trait Register: Vector<f32> {
    /// Rows of a tile such that the tile, two vectors of `b` and a broadcast fill the registers.
    const ROWS: usize;
    type Mask: Copy;

    /// The first `n` lanes.
    unsafe fn mask(n: usize) -> Self::Mask;
    unsafe fn load_from(p: *const f32) -> Self;
    unsafe fn load_part(p: *const f32, mask: Self::Mask) -> Self;
    unsafe fn store_to(self, p: *mut f32);
    unsafe fn store_part(self, p: *mut f32, mask: Self::Mask);
}

macro_rules! register {
    ($v:ty, $rows:literal, $mask:ty: |$n:ident| $first:expr, $load:path, |$p:ident, $m:ident| $part:expr, $store:path, $store_part:path) => {
        impl Register for $v {
            const ROWS: usize = $rows;
            type Mask = $mask;

            #[inline(always)]
            unsafe fn mask($n: usize) -> $mask {
                $first
            }
            #[inline(always)]
            unsafe fn load_from(p: *const f32) -> Self {
                // SAFETY: see the trait; the same for the others, where masked-out lanes are not accessed.
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn load_part($p: *const f32, $m: $mask) -> Self {
                // SAFETY: as above.
                unsafe { $part }
            }
            #[inline(always)]
            unsafe fn store_to(self, p: *mut f32) {
                // SAFETY: as above.
                unsafe { $store(p, self) }
            }
            #[inline(always)]
            unsafe fn store_part(self, p: *mut f32, mask: $mask) {
                // SAFETY: as above.
                unsafe { $store_part(p, mask, self) }
            }
        }
    };
}

register!(
    __m512, 14, __mmask16: |n| if n >= 16 { !0 } else { (1 << n) - 1 },
    _mm512_loadu_ps, |p, mask| _mm512_maskz_loadu_ps(mask, p), _mm512_storeu_ps, _mm512_mask_storeu_ps
);
register!(
    __m256, 6, __m256i:
    // SAFETY: see the trait.
    |n| unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(8) as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) },
    _mm256_loadu_ps, |p, mask| _mm256_maskload_ps(p, mask), _mm256_storeu_ps, _mm256_maskstore_ps
);

/// Kinds of kernels: two vectors or one, complete or not, rows adjacent in `a` or not.
const KINDS: usize = 6;

/// The kind of kernel for a tile of `cols` columns; `unit`: `a_row` is 1.
#[inline(always)]
fn kind_of<V: Register>(cols: usize, unit: bool) -> usize {
    match cols {
        n if n == 2 * V::LANES => usize::from(!unit),
        n if n == V::LANES => 2 + usize::from(!unit),
        n => 4 + usize::from(n < V::LANES),
    }
}

/// Walks the tiles so that the smaller operand's part stays in cache.
#[inline(always)]
unsafe fn panels<V: Register, const ROWS: usize>(mut t: Product<'_, f32>, kernels: &[[Kernel; ROWS]; KINDS]) {
    let width = 2 * V::LANES;
    let (rows, cols, unit, count) = (t.rows, t.cols, t.a_row == 1, t.repeat.count);
    let panels = || (0..cols).step_by(width).map(|j0| (j0, width.min(cols - j0)));
    let mut tile = |k: usize, (r0, r1): (usize, usize), (j0, cols): (usize, usize)| {
        let kernel = kernels[kind_of::<V>(cols, unit)][r1 - r0 - 1];
        // SAFETY: the tile lies inside the checked task.
        unsafe { kernel(&mut t, k, r0, j0, cols) }
    };
    for k in 0..count {
        if rows > cols {
            parts(rows, ROWS).for_each(|band| panels().for_each(|panel| tile(k, band, panel)));
        } else {
            panels().for_each(|panel| parts(rows, ROWS).for_each(|band| tile(k, band, panel)));
        }
    }
}

/// `P` rows × `N` vectors; `PART`: the last vector is incomplete; `UNIT`: `a_row` is 1.
#[inline(always)]
unsafe fn tile<V: Register, const P: usize, const N: usize, const PART: bool, const UNIT: bool>(
    t: &mut Product<'_, f32>,
    k: usize,
    r0: usize,
    j0: usize,
    cols: usize,
) {
    // SAFETY: every pointer stays inside the task's slices: `Product::check` bounded the largest
    // offset of each, and the tile's rows and columns are among the task's.
    unsafe {
        let mask = V::mask(cols - (N - 1) * V::LANES);
        let load = |p: *const f32, n: usize| {
            let p = p.add(n * V::LANES);
            if PART && n == N - 1 { V::load_part(p, mask) } else { V::load_from(p) }
        };
        let a_row = if UNIT { 1 } else { t.a_row };
        let c = t.c.as_mut_ptr().add(k * t.repeat.c + r0 * t.c_row + j0);
        let mut acc = [[V::splat(0.0); N]; P];
        match t.start {
            TileStart::Zero => {}
            TileStart::Bias(bias) => {
                for n in 0..N {
                    let v = load(bias.as_ptr().add(j0), n);
                    for row in &mut acc {
                        row[n] = v;
                    }
                }
            }
            TileStart::Output => {
                for (p, row) in acc.iter_mut().enumerate() {
                    for (n, v) in row.iter_mut().enumerate() {
                        *v = load(c.add(p * t.c_row), n);
                    }
                }
            }
        }
        if t.inner > 0 {
            for o in 0..t.outer {
                let mut a = t.a.as_ptr().wrapping_add(k * t.repeat.a + r0 * a_row + o * t.a_outer);
                let mut b = t.b.as_ptr().wrapping_add(k * t.repeat.b + j0 + o * t.b_outer);
                for _ in 0..t.inner {
                    let mut w = [V::splat(0.0); N];
                    for (n, v) in w.iter_mut().enumerate() {
                        *v = load(b, n);
                    }
                    for (p, row) in acc.iter_mut().enumerate() {
                        let x = V::splat(*a.add(p * a_row));
                        for (sum, w) in row.iter_mut().zip(w) {
                            *sum = sum.plus_times(x, w);
                        }
                    }
                    a = a.wrapping_add(t.a_inner);
                    b = b.wrapping_add(t.b_inner);
                }
            }
        }
        for (p, row) in acc.iter().enumerate() {
            for (n, v) in row.iter().enumerate() {
                let v = if t.relu { v.max(V::splat(0.0)) } else { *v };
                let to = c.add(p * t.c_row + n * V::LANES);
                if PART && n == N - 1 { v.store_part(to, mask) } else { v.store_to(to) }
            }
        }
    }
}
