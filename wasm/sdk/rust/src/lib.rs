//! Hooks for gpupipe in Rust, version 1 of the ABI (docs/HOOKS.md). Write one function and name it:
//!
//! ```ignore
//! use gpupipe::{config, Value};
//!
//! gpupipe::build_loss!(loss);
//! fn loss(logits: Value, targets: Value) -> Value {
//!     let nll = -logits.log_softmax().pick(targets);
//!     nll * config().number("weight", 1.0)
//! }
//! ```
//!
//! A panic, or [`fail`], ends the call with its message. Build for the target `wasm32-unknown-unknown` as a `cdylib`.

pub mod config;
pub mod graph;

pub use config::config;
pub use graph::{Number, Value};

mod host {
    #[link(wasm_import_module = "gpupipe")]
    extern "C" {
        pub fn log(text: *const u8, length: usize);
        pub fn fail(text: *const u8, length: usize);
    }
}

/// Writes a line for the user.
pub fn log(text: &str) {
    unsafe { host::log(text.as_ptr(), text.len()) }
}

/// Says why the call fails, which should then return.
pub fn fail(text: &str) {
    unsafe { host::fail(text.as_ptr(), text.len()) }
}

/// What hooks are called with: an array in memory that the host has filled, or will read.
#[repr(C)]
pub struct Array {
    dtype: u32,
    flags: u32,
    rank: u32,
    dims: [u32; 4],
    data: *mut u8,
}

impl Array {
    /// The elements, which are `T`.
    ///
    /// # Safety
    /// The array must come from the host, and hold `T`.
    pub unsafe fn elements<T>(&self) -> &[T] {
        let n = self.dims[..self.rank as usize].iter().product::<u32>();
        std::slice::from_raw_parts(self.data as *const T, n as usize)
    }

    /// Stores an element.
    ///
    /// # Safety
    /// As [`Array::elements`], and it must be the host's output with room for it.
    pub unsafe fn set<T>(&self, index: usize, value: T) {
        (self.data as *mut T).add(index).write(value)
    }
}

#[doc(hidden)]
pub unsafe fn arrays<'a>(arrays: *const Array, count: i32) -> &'a [Array] {
    std::slice::from_raw_parts(arrays, count as usize)
}

#[no_mangle]
extern "C" fn gpupipe_abi_v1() -> i32 {
    0
}

#[no_mangle]
extern "C" fn gpupipe_alloc(size: usize) -> *mut u8 {
    match std::alloc::Layout::from_size_align(size, 16) {
        Ok(layout) => unsafe { std::alloc::alloc(layout) },
        Err(_) => std::ptr::null_mut(),
    }
}

#[no_mangle]
unsafe extern "C" fn gpupipe_open(text: *const u8, length: usize, seed: u64) -> i32 {
    std::panic::set_hook(Box::new(|info| fail(&info.to_string())));
    config::set(std::slice::from_raw_parts(text, length), seed);
    0
}

/// Names the function `fn(logits: Value, targets: Value) -> Value` that builds the loss of logits f32 `[N, V]` and targets
/// u32 `[N]`: f32 `[N]`, of which the mean is taken, or one f32.
#[macro_export]
macro_rules! build_loss {
    ($f:path) => {
        #[no_mangle]
        extern "C" fn build_loss(_: *const $crate::Array, _: i32) -> i32 {
            $f($crate::Value::input("logits"), $crate::Value::input("targets")).handle() as i32
        }
    };
}

/// Names the function `fn(text: &str, keep: &mut dyn FnMut(&str))` that is called with each document; what it keeps takes the
/// document's place.
#[macro_export]
macro_rules! map_document {
    ($f:path) => {
        #[no_mangle]
        unsafe extern "C" fn map_document(a: *const $crate::Array, n: i32) -> i32 {
            let text = String::from_utf8_lossy($crate::arrays(a, n)[0].elements::<u8>());
            $f(&text, &mut |kept: &str| $crate::emit(kept));
            0
        }
    };
}

#[doc(hidden)]
pub fn emit(text: &str) {
    #[link(wasm_import_module = "gpupipe")]
    extern "C" {
        #[link_name = "emit"]
        fn host_emit(text: *const u8, length: usize);
    }
    unsafe { host_emit(text.as_ptr(), text.len()) }
}

/// Names the function `fn(step: i64, steps: i64, base: f64) -> f64` that gives the factor on all learning rates of a step; base
/// is what the schedule of the config gives.
#[macro_export]
macro_rules! learning_rate {
    ($f:path) => {
        #[no_mangle]
        unsafe extern "C" fn learning_rate(a: *const $crate::Array, n: i32) -> i32 {
            let a = $crate::arrays(a, n);
            let of = a[0].elements::<f64>();
            a[1].set(0, $f(of[0] as i64, of[1] as i64, of[2]));
            0
        }
    };
}

/// Names the function `fn(json: &str) -> bool` that is told of each step, a line of metrics.jsonl; if it returns true the run
/// ends after the step.
#[macro_export]
macro_rules! on_metrics {
    ($f:path) => {
        #[no_mangle]
        unsafe extern "C" fn on_metrics(a: *const $crate::Array, n: i32) -> i32 {
            $f(&String::from_utf8_lossy($crate::arrays(a, n)[0].elements::<u8>())) as i32
        }
    };
}
