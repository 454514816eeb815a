//! The tile product with AVX2 (6 × 16 tiles) and AVX-512 (14 × 32 tiles).
//!
//! One kernel, generic over the vector type; `#[target_feature]` on the two entry points is what
//! turns the `inline(always)` bodies into vector code.

use std::arch::x86_64::*;

use super::{Product, Start, parts};

/// # Safety
/// The CPU has AVX-512F, and the task's bounds were checked.
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
pub(super) unsafe fn avx512(task: Product<'_, f32>) {
    // SAFETY: the caller's promises are the callee's requirements.
    unsafe { panels::<__m512>(task) }
}

/// # Safety
/// The CPU has AVX2 and FMA, and the task's bounds were checked.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(task: Product<'_, f32>) {
    // SAFETY: the caller's promises are the callee's requirements.
    unsafe { panels::<__m256>(task) }
}

/// A vector register of `f32` and the few operations that the kernel needs.
///
/// # Safety
/// Every function requires the vector's instruction set, and valid pointers for the lanes it touches.
trait Vector: Copy {
    const LANES: usize;
    /// Rows of a tile such that the tile, two vectors of `b` and a broadcast fill the registers.
    const ROWS: usize;
    type Mask: Copy;

    /// The first `n` lanes.
    unsafe fn mask(n: usize) -> Self::Mask;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn load_part(p: *const f32, mask: Self::Mask) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn store_part(self, p: *mut f32, mask: Self::Mask);
    unsafe fn multiply_add(self, x: Self, sum: Self) -> Self;
    unsafe fn positive_part(self) -> Self;
}

impl Vector for __m512 {
    const LANES: usize = 16;
    const ROWS: usize = 14;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn mask(n: usize) -> __mmask16 {
        if n >= 16 { !0 } else { (1 << n) - 1 }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, mask: __mmask16) -> Self {
        // SAFETY: see the trait; masked-out lanes are not accessed.
        unsafe { _mm512_maskz_loadu_ps(mask, p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the trait.
        unsafe { _mm512_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, mask: __mmask16) {
        // SAFETY: see the trait; masked-out lanes are not accessed.
        unsafe { _mm512_mask_storeu_ps(p, mask, self) }
    }
    #[inline(always)]
    unsafe fn multiply_add(self, x: Self, sum: Self) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm512_fmadd_ps(self, x, sum) }
    }
    #[inline(always)]
    unsafe fn positive_part(self) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm512_max_ps(self, _mm512_setzero_ps()) }
    }
}

impl Vector for __m256 {
    const LANES: usize = 8;
    const ROWS: usize = 6;
    type Mask = __m256i;

    #[inline(always)]
    unsafe fn mask(n: usize) -> __m256i {
        // SAFETY: see the trait.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(8) as i32), lane)
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, mask: __m256i) -> Self {
        // SAFETY: see the trait; masked-out lanes are not accessed.
        unsafe { _mm256_maskload_ps(p, mask) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the trait.
        unsafe { _mm256_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, mask: __m256i) {
        // SAFETY: see the trait; masked-out lanes are not accessed.
        unsafe { _mm256_maskstore_ps(p, mask, self) }
    }
    #[inline(always)]
    unsafe fn multiply_add(self, x: Self, sum: Self) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm256_fmadd_ps(self, x, sum) }
    }
    #[inline(always)]
    unsafe fn positive_part(self) -> Self {
        // SAFETY: see the trait.
        unsafe { _mm256_max_ps(self, _mm256_setzero_ps()) }
    }
}

/// Walks the tiles so that the smaller operand's part stays in cache.
#[inline(always)]
unsafe fn panels<V: Vector>(mut t: Product<'_, f32>) {
    let width = 2 * V::LANES;
    let (rows, cols) = (t.rows, t.cols);
    let panels = cols.div_ceil(width);
    let panel = |i: usize| (i * width, cols.min((i + 1) * width));
    for k in 0..t.repeat.count {
        if rows > cols {
            for (r0, r1) in parts(rows, V::ROWS) {
                for (j0, j1) in (0..panels).map(panel) {
                    // SAFETY: the tile lies inside the checked task.
                    unsafe { tile_of::<V>(&mut t, k, r0, r1 - r0, j0, j1 - j0) }
                }
            }
        } else {
            for (j0, j1) in (0..panels).map(panel) {
                for (r0, r1) in parts(rows, V::ROWS) {
                    // SAFETY: the tile lies inside the checked task.
                    unsafe { tile_of::<V>(&mut t, k, r0, r1 - r0, j0, j1 - j0) }
                }
            }
        }
    }
}

/// Picks the kernel for a tile's number of rows, width, and whether its rows are adjacent in `a`.
#[inline(always)]
unsafe fn tile_of<V: Vector>(
    t: &mut Product<'_, f32>,
    k: usize,
    r0: usize,
    rows: usize,
    j0: usize,
    cols: usize,
) {
    macro_rules! pick {
        ($($p:literal)*) => {
            // SAFETY: `rows` and `cols` are those of a tile inside the checked task.
            unsafe {
                match (rows, cols == 2 * V::LANES, t.a_row == 1) {
                    $(($p, true, true) => tile::<V, $p, 2, false, true>(t, k, r0, j0, cols),
                      ($p, true, false) => tile::<V, $p, 2, false, false>(t, k, r0, j0, cols),)*
                    $(($p, false, unit) if cols == V::LANES => match unit {
                        true => tile::<V, $p, 1, false, true>(t, k, r0, j0, cols),
                        false => tile::<V, $p, 1, false, false>(t, k, r0, j0, cols),
                    },)*
                    $(($p, false, _) if cols < V::LANES => tile::<V, $p, 1, true, false>(t, k, r0, j0, cols),
                      ($p, false, _) => tile::<V, $p, 2, true, false>(t, k, r0, j0, cols),)*
                    _ => unreachable!("a tile has 1 to {} rows", V::ROWS),
                }
            }
        };
    }
    if V::ROWS > 6 { pick!(1 2 3 4 5 6 7 8 9 10 11 12 13 14) } else { pick!(1 2 3 4 5 6) }
}

/// `P` rows × `N` vectors; `PART`: the last vector is incomplete; `UNIT`: `a_row` is 1.
#[inline(always)]
unsafe fn tile<V: Vector, const P: usize, const N: usize, const PART: bool, const UNIT: bool>(
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
            if PART && n == N - 1 { V::load_part(p, mask) } else { V::load(p) }
        };
        let a_row = if UNIT { 1 } else { t.a_row };
        let c = t.c.as_mut_ptr().add(k * t.repeat.c + r0 * t.c_row + j0);
        let mut acc = [[V::splat(0.0); N]; P];
        match t.start {
            Start::Zero => {}
            Start::Bias(bias) => {
                for n in 0..N {
                    let v = load(bias.as_ptr().add(j0), n);
                    for row in &mut acc {
                        row[n] = v;
                    }
                }
            }
            Start::Output => {
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
                            *sum = x.multiply_add(w, *sum);
                        }
                    }
                    a = a.wrapping_add(t.a_inner);
                    b = b.wrapping_add(t.b_inner);
                }
            }
        }
        for (p, row) in acc.iter().enumerate() {
            for (n, v) in row.iter().enumerate() {
                let v = if t.relu { v.positive_part() } else { *v };
                let to = c.add(p * t.c_row + n * V::LANES);
                if PART && n == N - 1 { v.store_part(to, mask) } else { v.store(to) }
            }
        }
    }
}
