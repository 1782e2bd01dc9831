//! Which instruction set the kernels use, found when the program runs.

use super::CpuError;
use crate::config::Isa;

/// A code path of the kernels.
///
/// `Avx2` is proof that the machine has AVX2, FMA and F16C: only [`Path::choose`] makes it, after looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

// === impl Path ===

impl Path {
    /// The path for a configured instruction set.
    pub(super) fn choose(isa: Isa) -> Result<Self, CpuError> {
        match isa {
            Isa::Portable => Ok(Self::Portable),
            Isa::Auto => Ok(Self::avx2().unwrap_or(Self::Portable)),
            Isa::Avx2 => Self::avx2().ok_or(CpuError::IsaMissing { isa: "avx2", needs: "AVX2, FMA and F16C" }),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(Self::Avx2)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn avx2() -> Option<Self> {
        None
    }

    /// As the configuration writes it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }
}

/// Defines a kernel that is written once and compiled for every path; its first argument is the path.
///
/// Rust never fuses a multiplication with an addition nor reorders a float sum, so all compilations give the same bits as
/// long as the body names its lanes itself and calls only `#[inline(always)]` functions.
macro_rules! per_path {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        fn $name(path: $crate::cpu::isa::Path, $($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            fn lanes($($arg: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $type),*) $(-> $result)? {
                lanes($($arg),*)
            }

            match path {
                // SAFETY: `Path::Avx2` exists only where the machine has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Path::Avx2 => unsafe { avx2($($arg),*) },
                $crate::cpu::isa::Path::Portable => lanes($($arg),*),
            }
        }
    };
}
pub(super) use per_path;
