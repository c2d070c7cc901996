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
