//! Models: the functions here and those of [`Value`] write them.

use crate::graph::{list, real};
use crate::Value;

mod host {
    #[link(wasm_import_module = "gpupipe")]
    extern "C" {
        pub fn graph_parameter(name: *const u8, length: usize, shape: *const u32, rank: usize, attributes: *const u8, attributes_length: usize) -> u32;
        pub fn graph_unit(name: *const u8, length: usize) -> u32;
    }
}

/// Names the function `fn(tokens: Value) -> Value` that builds a model: of tokens u32 `[B, T]` the logits f32 `[B, T, V]`.
#[macro_export]
macro_rules! build_model {
    ($f:path) => {
        #[export_name = "build_model"]
        extern "C" fn gpupipe_hook_build_model(_: *mut $crate::Array, _: i32) -> i32 {
            $f($crate::Value::input("tokens")).handle() as i32
        }
    };
}

/// Begins the next unit, a piece that the model can be cut at: one f32 `[B, T, d]` goes from each to the next.
pub fn unit(name: &str) {
    unsafe { host::graph_unit(name.as_ptr(), name.len()) };
}

/// An f32 that is trained; attributes are a JSON object or "".
pub fn parameter(name: &str, shape: &[u32], attributes: &str) -> Value {
    let a = attributes.as_bytes();
    Value(unsafe { host::graph_parameter(name.as_ptr(), name.len(), shape.as_ptr(), shape.len(), a.as_ptr(), a.len()) })
}

/// A parameter that begins normally distributed.
pub fn normal(name: &str, std: f64, shape: &[u32]) -> Value {
    parameter(name, shape, &format!("{{\"init\":\"normal\",\"std\":{}}}", real(std)))
}

/// A parameter that begins as ones.
pub fn ones(name: &str, shape: &[u32]) -> Value {
    parameter(name, shape, "{\"init\":\"ones\"}")
}

/// A parameter that begins as zeros.
pub fn zeros(name: &str, shape: &[u32]) -> Value {
    parameter(name, shape, "{\"init\":\"zeros\"}")
}

impl Value {
    /// x·wᵀ, w `[outputs, inputs]`.
    pub fn linear(self, w: Value) -> Value {
        Value::op("matmul", &[self, w], "{\"trans_b\":true}")
    }

    /// The k largest elements of each row of x `[N, E]`: values `[N, k]` in descending order, and their columns, u32 `[N, k]`.
    pub fn top_k(self, k: usize) -> (Value, Value) {
        let values = Value::op("top_k", &[self], &format!("{{\"k\":{}}}", k));
        (values, values.second())
    }

    /// Sorts the pairs of a token and one of its experts, ids u32 `[N, k]`, by expert: the pair in each sorted row u32 `[N·k]`, the row
    /// of each pair u32 `[N, k]`, and where the rows of each expert begin, u32 `[experts + 1]`.
    pub fn group_rows(self, experts: usize) -> (Value, Value, Value) {
        let order = Value::op("group_rows", &[self], &format!("{{\"experts\":{}}}", experts));
        (order, order.second(), order.second().second())
    }

    /// Rows of x `[M, D]` by an index u32 `[…]`: `[…, D]`. The inverse u32 `[M, c]` lists the positions in the index that read each row.
    pub fn take(self, index: Value, inverse: Value) -> Value {
        Value::op("take", &[self, index, inverse], "")
    }

    /// x·wᵀ for the rows of each expert: x `[R, inputs]`, w `[E, outputs, inputs]`, offsets u32 `[E + 1]` of [`Value::group_rows`].
    pub fn grouped_linear(self, w: Value, offsets: Value) -> Value {
        Value::op("grouped_matmul", &[self, w, offsets], "{\"trans_b\":true}")
    }

    /// x/√(mean(x²) + eps)·w along the last axis.
    pub fn rms_norm(self, w: Value, eps: f64) -> Value {
        Value::op("rms_norm", &[self, w], &format!("{{\"eps\":{}}}", real(eps)))
    }

    /// (x − mean)/√(variance + eps)·w + b along the last axis.
    pub fn layer_norm(self, w: Value, b: Value, eps: f64) -> Value {
        Value::op("layer_norm", &[self, w, b], &format!("{{\"eps\":{}}}", real(eps)))
    }

    /// Rotates the two halves of x `[B, T, H, D]` by the position.
    pub fn rope(self, theta: f64) -> Value {
        Value::op("rope", &[self], &format!("{{\"theta\":{}}}", real(theta)))
    }

    /// Causal attention of q `[B, T, H, D]`, k and v `[B, T, KV, D]`: `[B, T, H, D]`.
    pub fn attention(self, k: Value, v: Value) -> Value {
        Value::op("attention", &[self, k, v], "")
    }

    /// [`Value::attention`] in which a token sees its own segment only, segments u32 `[B, T]`.
    pub fn attention_within(self, k: Value, v: Value, segments: Value) -> Value {
        Value::op("attention", &[self, k, v, segments], "")
    }

    /// The axes in another order.
    pub fn permute(self, axes: &[usize]) -> Value {
        Value::op("permute", &[self], &format!("{{\"axes\":{}}}", list(axes)))
    }
}
