//! Graphs: each function adds an op and returns its result. A mistake ends the call with an error that names the op.

use std::fmt::Write;
use std::ops::{Add, Div, Mul, Neg, Sub};

mod host {
    #[link(wasm_import_module = "gpupipe")]
    extern "C" {
        pub fn graph_input(name: *const u8, length: usize) -> u32;
        pub fn graph_op(name: *const u8, length: usize, inputs: *const u32, count: usize, attributes: *const u8, attributes_length: usize) -> u32;
        pub fn graph_scalar(name: *const u8, length: usize) -> u32;
        pub fn graph_shape(handle: u32, dims: *mut u32, capacity: usize) -> i32;
    }
}

/// A tensor of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Value(pub(crate) u32);

/// A tensor, or a number, which becomes f32 `[]`.
pub trait Number {
    fn value(self) -> Value;
}

impl Number for Value {
    fn value(self) -> Value {
        self
    }
}

impl Number for f64 {
    fn value(self) -> Value {
        Value::op("full", &[], &format!("{{\"value\":{}}}", real(self)))
    }
}

/// JSON of a number, with hexadecimal digits: they lose nothing.
pub(crate) fn real(x: f64) -> String {
    let bits = x.to_bits();
    let sign = if bits >> 63 == 1 { "-" } else { "" };
    let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & (1 << 52) - 1);
    match exponent {
        0x7ff if fraction != 0 => "\"nan\"".into(),
        0x7ff => format!("\"{}inf\"", sign),
        0 => format!("\"{}0x0.{:013x}p-1022\"", sign, fraction),
        _ => format!("\"{}0x1.{:013x}p{}\"", sign, fraction, exponent - 1023),
    }
}

pub(crate) fn list<T: std::fmt::Display>(xs: &[T]) -> String {
    let mut text = String::from("[");
    for (i, x) in xs.iter().enumerate() {
        let _ = write!(text, "{}{}", if i > 0 { "," } else { "" }, x);
    }
    text + "]"
}

impl Value {
    /// A named input: of a loss "logits", "targets", "weights", "hidden", "lm_head.weight", "model.norm.weight" or an array of
    /// data.aligned; of a model "tokens" or "segments".
    pub fn input(name: &str) -> Value {
        Value(unsafe { host::graph_input(name.as_ptr(), name.len()) })
    }

    /// An f32 `[]` of a loss that [`loss_scalars!`](crate::loss_scalars) sets for each step.
    pub fn scalar(name: &str) -> Value {
        Value(unsafe { host::graph_scalar(name.as_ptr(), name.len()) })
    }

    /// Any op of docs/HOOKS.md; attributes are a JSON object or "".
    pub fn op(name: &str, inputs: &[Value], attributes: &str) -> Value {
        let (i, a) = (inputs.as_ptr() as *const u32, attributes.as_bytes());
        Value(unsafe { host::graph_op(name.as_ptr(), name.len(), i, inputs.len(), a.as_ptr(), a.len()) })
    }

    /// The number by which the host knows it.
    pub fn handle(self) -> u32 {
        self.0
    }

    /// The result after this one, of an op that has several.
    pub fn second(self) -> Value {
        Value(self.0 + 1)
    }

    /// The extents of its axes.
    pub fn shape(self) -> Vec<usize> {
        let mut dims = [0u32; 8];
        let rank = unsafe { host::graph_shape(self.0, dims.as_mut_ptr(), dims.len()) };
        dims[..rank as usize].iter().map(|&d| d as usize).collect()
    }

    /// c·x.
    pub fn scale(self, c: f64) -> Value {
        Value::op("scale", &[self], &format!("{{\"factor\":{}}}", real(c)))
    }

    /// x + c.
    pub fn shift(self, c: f64) -> Value {
        Value::op("shift", &[self], &format!("{{\"offset\":{}}}", real(c)))
    }

    /// c·tanh(x/c).
    pub fn softcap(self, c: f64) -> Value {
        Value::op("softcap", &[self], &format!("{{\"cap\":{}}}", real(c)))
    }

    /// x limited to [low, high].
    pub fn clamp(self, low: f64, high: f64) -> Value {
        Value::op("clamp", &[self], &format!("{{\"low\":{},\"high\":{}}}", real(low), real(high)))
    }

    /// As f32, i32 or u32.
    pub fn cast(self, dtype: &str) -> Value {
        Value::op("cast", &[self], &format!("{{\"to\":\"{}\"}}", dtype))
    }

    /// x where the value is not zero, else y.
    pub fn select(self, x: impl Number, y: impl Number) -> Value {
        Value::op("where", &[self, x.value(), y.value()], "")
    }

    /// The same elements in another shape; one extent may be −1.
    pub fn reshape(self, shape: &[i64]) -> Value {
        Value::op("reshape", &[self], &format!("{{\"shape\":{}}}", list(shape)))
    }

    /// Repeated along new leading axes and axes of extent one.
    pub fn broadcast(self, shape: &[usize]) -> Value {
        Value::op("broadcast", &[self], &format!("{{\"shape\":{}}}", list(shape)))
    }

    /// The coordinates from start to before limit of an axis.
    pub fn slice(self, axis: usize, start: usize, limit: usize) -> Value {
        Value::op("slice", &[self], &format!("{{\"axis\":{},\"start\":{},\"limit\":{}}}", axis, start, limit))
    }

    /// A tensor f32 of numbers.
    pub fn constant(shape: &[usize], data: &[f64]) -> Value {
        let data: Vec<String> = data.iter().map(|&x| real(x)).collect();
        Value::op("constant", &[], &format!("{{\"shape\":{},\"data\":{}}}", list(shape), list(&data)))
    }

    fn reduce(self, op: &str, axes: &[i64], keep: bool) -> Value {
        Value::op(op, &[self], &format!("{{\"axes\":{},\"keep\":{}}}", list(axes), keep))
    }

    /// Adds over axes, which leave the shape, or with keep stay as one; negative ones count from the end.
    pub fn sum(self, axes: &[i64], keep: bool) -> Value {
        self.reduce("sum", axes, keep)
    }

    /// The mean over axes; see [`Value::sum`].
    pub fn mean(self, axes: &[i64], keep: bool) -> Value {
        self.reduce("mean", axes, keep)
    }

    /// The largest over axes; see [`Value::sum`].
    pub fn max(self, axes: &[i64], keep: bool) -> Value {
        self.reduce("max", axes, keep)
    }

    /// The smallest over axes; see [`Value::sum`].
    pub fn min(self, axes: &[i64], keep: bool) -> Value {
        self.reduce("min", axes, keep)
    }

    /// log Σ eˣ along the last axis, without overflow.
    pub fn log_sum_exp(self) -> Value {
        let top = self.max(&[-1], true).stop_gradient();
        (self - top).exp().sum(&[-1], false).log() + top.sum(&[-1], false)
    }

    /// `exp` of each element.
    pub fn exp(self) -> Value {
        Value::op("exp", &[self], "")
    }

    /// `log` of each element.
    pub fn log(self) -> Value {
        Value::op("log", &[self], "")
    }

    /// `sqrt` of each element.
    pub fn sqrt(self) -> Value {
        Value::op("sqrt", &[self], "")
    }

    /// `rsqrt` of each element.
    pub fn rsqrt(self) -> Value {
        Value::op("rsqrt", &[self], "")
    }

    /// `tanh` of each element.
    pub fn tanh(self) -> Value {
        Value::op("tanh", &[self], "")
    }

    /// `sigmoid` of each element.
    pub fn sigmoid(self) -> Value {
        Value::op("sigmoid", &[self], "")
    }

    /// `erf` of each element.
    pub fn erf(self) -> Value {
        Value::op("erf", &[self], "")
    }

    /// `abs` of each element.
    pub fn abs(self) -> Value {
        Value::op("abs", &[self], "")
    }

    /// `square` of each element.
    pub fn square(self) -> Value {
        Value::op("square", &[self], "")
    }

    /// `reciprocal` of each element.
    pub fn reciprocal(self) -> Value {
        Value::op("reciprocal", &[self], "")
    }

    /// `silu` of each element.
    pub fn silu(self) -> Value {
        Value::op("silu", &[self], "")
    }

    /// `gelu` of each element.
    pub fn gelu(self) -> Value {
        Value::op("gelu", &[self], "")
    }

    /// `gelu_tanh` of each element.
    pub fn gelu_tanh(self) -> Value {
        Value::op("gelu_tanh", &[self], "")
    }

    /// `squared_relu` of each element.
    pub fn squared_relu(self) -> Value {
        Value::op("squared_relu", &[self], "")
    }

    /// `is_finite` of each element.
    pub fn is_finite(self) -> Value {
        Value::op("is_finite", &[self], "")
    }

    /// The same value, through which no gradient flows.
    pub fn stop_gradient(self) -> Value {
        Value::op("stop_gradient", &[self], "")
    }

    /// eˣ/Σeˣ along the last axis.
    pub fn softmax(self) -> Value {
        Value::op("softmax", &[self], "")
    }

    /// x − log Σeˣ along the last axis.
    pub fn log_softmax(self) -> Value {
        Value::op("log_softmax", &[self], "")
    }

    /// Exchanges the last two axes.
    pub fn transpose(self) -> Value {
        Value::op("transpose", &[self], "")
    }

    /// `pow` of the two.
    pub fn pow(self, y: impl Number) -> Value {
        Value::op("pow", &[self, y.value()], "")
    }

    /// `maximum` of the two.
    pub fn maximum(self, y: impl Number) -> Value {
        Value::op("maximum", &[self, y.value()], "")
    }

    /// `minimum` of the two.
    pub fn minimum(self, y: impl Number) -> Value {
        Value::op("minimum", &[self, y.value()], "")
    }

    /// `and` of the two.
    pub fn and(self, y: Value) -> Value {
        Value::op("and", &[self, y], "")
    }

    /// `or` of the two.
    pub fn or(self, y: Value) -> Value {
        Value::op("or", &[self, y], "")
    }

    /// `less` of the two.
    pub fn less(self, y: impl Number) -> Value {
        Value::op("less", &[self, y.value()], "")
    }

    /// `less_equal` of the two.
    pub fn less_equal(self, y: impl Number) -> Value {
        Value::op("less_equal", &[self, y.value()], "")
    }

    /// `greater` of the two.
    pub fn greater(self, y: impl Number) -> Value {
        Value::op("greater", &[self, y.value()], "")
    }

    /// `greater_equal` of the two.
    pub fn greater_equal(self, y: impl Number) -> Value {
        Value::op("greater_equal", &[self, y.value()], "")
    }

    /// `equal` of the two.
    pub fn equal(self, y: impl Number) -> Value {
        Value::op("equal", &[self, y.value()], "")
    }

    /// `not_equal` of the two.
    pub fn not_equal(self, y: impl Number) -> Value {
        Value::op("not_equal", &[self, y.value()], "")
    }

    /// Takes element `ids[i]` of row i: `[…, V]` and u32 `[…]` give `[…]`.
    pub fn pick(self, y: Value) -> Value {
        Value::op("pick", &[self, y], "")
    }

    /// Rows of a table: `[V, D]` and u32 `[…]` give `[…, D]`.
    pub fn embedding(self, y: Value) -> Value {
        Value::op("embedding", &[self, y], "")
    }

    /// `matmul` of the two.
    pub fn matmul(self, y: Value) -> Value {
        Value::op("matmul", &[self, y], "")
    }

    /// The negative log-likelihood of targets u32 `[N]` under logits `[N, V]`: `[N]`.
    pub fn cross_entropy(self, y: Value) -> Value {
        Value::op("cross_entropy", &[self, y], "")
    }
}

impl Neg for Value {
    type Output = Value;
    fn neg(self) -> Value {
        Value::op("neg", &[self], "")
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $name:literal) => {
        impl<N: Number> $trait<N> for Value {
            type Output = Value;
            fn $method(self, y: N) -> Value {
                Value::op($name, &[self, y.value()], "")
            }
        }

        impl $trait<Value> for f64 {
            type Output = Value;
            fn $method(self, y: Value) -> Value {
                Value::op($name, &[self.value(), y], "")
            }
        }
    };
}

operator!(Add, add, "add");
operator!(Sub, sub, "sub");
operator!(Mul, mul, "mul");
operator!(Div, div, "div");
