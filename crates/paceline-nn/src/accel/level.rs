//! Which instruction set the kernels use, found out at run time.

use std::fmt;

/// An instruction set that this CPU has been seen to support.
///
/// Values come only from [`Level::detect`] and [`Level::available`], so holding one is the proof
/// that calling kernels compiled for it is sound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Level(pub(super) Isa);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Isa {
    Portable,
    Avx2,
    Avx512,
}

impl Level {
    /// Plain Rust, on any CPU.
    pub const PORTABLE: Level = Level(Isa::Portable);

    /// The best level of this CPU.
    pub fn detect() -> Level {
        *Self::available().last().unwrap_or(&Self::PORTABLE)
    }

    /// Every level of this CPU, the portable one first, the best last.
    pub fn available() -> Vec<Level> {
        let mut levels = vec![Self::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                levels.push(Level(Isa::Avx2));
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                    levels.push(Level(Isa::Avx512));
                }
            }
        }
        levels
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}
