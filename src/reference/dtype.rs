//! The element types of weights, as GGUF files store them.

/// How a tensor's elements are stored: plain floats, or blocks of small integers that share scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Blocks of 32: f16 scale, 4-bit levels with offset 8.
    Q4_0,
    /// Blocks of 32: f16 scale and minimum, 4-bit levels.
    Q4_1,
    /// Blocks of 32: f16 scale, 5-bit levels with offset 16.
    Q5_0,
    /// Blocks of 32: f16 scale and minimum, 5-bit levels.
    Q5_1,
    /// Blocks of 32: f16 scale, signed 8-bit levels.
    Q8_0,
    /// Blocks of 256: 4-bit levels, 6-bit scales and minima of 32 elements each, f16 scale of both.
    Q4K,
    /// Blocks of 256: as [`Dtype::Q4K`] with 5-bit levels.
    Q5K,
    /// Blocks of 256: 6-bit levels with offset 32, signed 8-bit scales of 16 elements each, f16 scale.
    Q6K,
}

// === impl Dtype ===

impl Dtype {
    /// Every type there is.
    pub const ALL: [Dtype; 11] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q8_0,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
    ];

    /// The type of this number in a GGUF file; `None` for numbers this program doesn't read.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.ggml() == id)
    }

    /// Its number in a GGUF file.
    pub fn ggml(self) -> u32 {
        match self {
            Dtype::F32 => 0,
            Dtype::F16 => 1,
            Dtype::Q4_0 => 2,
            Dtype::Q4_1 => 3,
            Dtype::Q5_0 => 6,
            Dtype::Q5_1 => 7,
            Dtype::Q8_0 => 8,
            Dtype::Q4K => 12,
            Dtype::Q5K => 13,
            Dtype::Q6K => 14,
            Dtype::BF16 => 30,
        }
    }

    /// Elements that are stored together: 1, 32 or 256.
    pub fn block_elements(self) -> usize {
        match self {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => 1,
            Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q8_0 => 32,
            Dtype::Q4K | Dtype::Q5K | Dtype::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::Q4_0 => 18,
            Dtype::Q4_1 => 20,
            Dtype::Q5_0 => 22,
            Dtype::Q5_1 => 24,
            Dtype::Q8_0 => 34,
            Dtype::Q4K => 144,
            Dtype::Q5K => 176,
            Dtype::Q6K => 210,
        }
    }

    /// Bytes of a row of `columns` elements, which must be whole blocks (`columns % block_elements() == 0`).
    pub fn row_bytes(self, columns: usize) -> usize {
        columns / self.block_elements() * self.block_bytes()
    }

    /// Its name as configuration, logs and metrics write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
            Dtype::Q4_0 => "q4_0",
            Dtype::Q4_1 => "q4_1",
            Dtype::Q5_0 => "q5_0",
            Dtype::Q5_1 => "q5_1",
            Dtype::Q8_0 => "q8_0",
            Dtype::Q4K => "q4_k",
            Dtype::Q5K => "q5_k",
            Dtype::Q6K => "q6_k",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
