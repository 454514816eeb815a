//! The most floating-point operations per second that one core can do, measured.

use std::hint::black_box;
use std::time::Instant;

use super::level::{Isa, Level};

/// GFLOP/s of a loop of independent multiply-adds that never leaves the registers (best of `rounds`).
pub fn peak_gflops(level: Level, rounds: usize) -> f64 {
    const ITERATIONS: usize = 2_000_000;
    let mut best = 0.0f64;
    for _ in 0..rounds.max(1) {
        let start = Instant::now();
        let flops = match level.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` exists only for features that were detected on this CPU.
            Isa::Avx512 => unsafe { x86::avx512(ITERATIONS) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { x86::avx2(ITERATIONS) },
            _ => portable(ITERATIONS),
        };
        best = best.max(flops / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}

fn portable(iterations: usize) -> f64 {
    let mut acc = [black_box(1.0f32); 32];
    let (x, y) = (black_box(0.999f32), black_box(0.001f32));
    for _ in 0..iterations {
        for a in &mut acc {
            *a = *a * x + y;
        }
    }
    black_box(acc);
    (iterations * 32 * 2) as f64
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps, _mm512_fmadd_ps, _mm512_set1_ps};
    use std::hint::black_box;

    #[target_feature(enable = "avx512f")]
    pub fn avx512(iterations: usize) -> f64 {
        let mut acc = [_mm512_set1_ps(black_box(1.0)); 24];
        let (x, y) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
        for _ in 0..iterations {
            for a in &mut acc {
                *a = _mm512_fmadd_ps(*a, x, y);
            }
        }
        black_box(acc);
        (iterations * 24 * 16 * 2) as f64
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn avx2(iterations: usize) -> f64 {
        let mut acc = [_mm256_set1_ps(black_box(1.0)); 12];
        let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
        for _ in 0..iterations {
            for a in &mut acc {
                *a = _mm256_fmadd_ps(*a, x, y);
            }
        }
        black_box(acc);
        (iterations * 12 * 8 * 2) as f64
    }
}
