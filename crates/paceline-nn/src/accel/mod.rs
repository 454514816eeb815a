//! Everything that is compiled per instruction set or shared between threads: the crate's only
//! `unsafe` code.
//!
//! | file | what it holds |
//! |---|---|
//! | [`level`](Level) | which instruction set this CPU has |
//! | `pool` | the persistent threads and the splitting of outputs between them |
//! | `product/` | the one strided tile product behind dense layers and convolutions |
//! | [`vector`](Vector) | a register's worth of numbers |
//! | `winograd` | the tile transforms of the fast convolution |
//! | `elementwise`, `gates`, `rows` | loops over slices, compiled once per level |
//! | `peak` | the register-only FMA loop that "fraction of peak" refers to |
//!
//! What leaves this module is safe to call: shapes are asserted at the border, and a [`Level`] can
//! only be had for instructions that the CPU supports.

#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "kernels index several arrays in step")]

/// Defines functions that are compiled once per instruction set and chosen by a [`Level`].
///
/// The body is ordinary safe Rust; the compiler vectorises it for each level.
macro_rules! per_level {
    ($($(#[$doc:meta])* pub fn $name:ident<$t:ident: Real>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name<$t: Real>(level: Level, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$t: Real>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
                fn avx512<$t: Real>($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<$t: Real>($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match level.0 {
                    // SAFETY: a `Level` exists only for features that were detected on this CPU.
                    Isa::Avx512 => unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => unsafe { avx2($($arg),*) },
                    Isa::Portable => body($($arg),*),
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            { let _ = level; body($($arg),*) }
        }
    )*};
}

/// Like `per_level!` for functions that name their vector type: the level's widest register.
macro_rules! per_vector {
    ($($(#[$doc:meta])* pub fn $name:ident<T: Real, V: Vector>($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        pub fn $name<T: Real>(level: Level, $($arg: $ty),*) {
            #[inline(always)]
            fn body<T: Real, V: Vector<T>>($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
                fn avx512<T: Real>($($arg: $ty),*) { body::<T, T::Avx512>($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<T: Real>($($arg: $ty),*) { body::<T, T::Avx2>($($arg),*) }
                match level.0 {
                    // SAFETY: a `Level` exists only for features that were detected on this CPU.
                    Isa::Avx512 => unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => unsafe { avx2($($arg),*) },
                    Isa::Portable => body::<T, Plain<T, 8>>($($arg),*),
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            { let _ = level; body::<T, Plain<T, 8>>($($arg),*) }
        }
    )*};
}

/// Runs `$body` for each block of 16 channels (`$n` = 16), then for each remaining one (`$n` = 1).
macro_rules! channel_blocks {
    ($c:expr, |$at:ident, $n:ident| $body:expr) => {{
        let whole = $c / 16 * 16;
        for $at in (0..whole).step_by(16) {
            const $n: usize = 16;
            $body
        }
        for $at in whole..$c {
            const $n: usize = 1;
            $body
        }
    }};
}

pub(crate) mod elementwise;
pub(crate) mod gates;
mod level;
mod peak;
mod pool;
mod product;
pub(crate) mod rows;
mod vector;
pub(crate) mod winograd;

pub use elementwise::accumulate;
pub use level::Level;
pub use peak::peak_gflops;
pub use pool::Pool;
pub use product::{Product, Repeat, TileStart};
pub(crate) use product::{product_f32, product_portable};
pub use vector::{Plain, Vector};
