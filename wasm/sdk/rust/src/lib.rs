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

pub mod batch;
pub mod config;
pub mod global;
pub mod graph;
pub mod loss;
pub mod model;

pub use batch::{Batch, Weights};
pub use config::{config, object};
pub use global::Global;
pub use graph::{Number, Value};
pub use loss::Sample;
pub use model::{normal, ones, unit, zeros};

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

/// What an array's elements can be.
pub trait Element: Copy {
    #[doc(hidden)]
    const DTYPE: u32;
}

macro_rules! element {
    ($($t:ty = $code:literal),*) => { $(impl Element for $t { const DTYPE: u32 = $code; })* };
}

element!(f32 = 1, i32 = 2, u8 = 3, i64 = 4, u32 = 5, f64 = 6);

impl Array {
    /// The extents of its axes; the last is contiguous.
    pub fn dims(&self) -> &[u32] {
        &self.dims[..self.rank as usize]
    }

    /// The elements. Panics if they are of another type.
    pub fn elements<T: Element>(&self) -> &[T] {
        unsafe { std::slice::from_raw_parts(self.data::<T>(), self.len()) }
    }

    /// The elements, to be changed: those of an array in, of a batch's aligned ones, of an output. Panics if they are of another type.
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        unsafe { std::slice::from_raw_parts_mut(self.data::<T>(), self.len()) }
    }

    fn len(&self) -> usize {
        self.dims().iter().product::<u32>() as usize
    }

    fn data<T: Element>(&self) -> *mut T {
        assert_eq!(self.dtype, T::DTYPE, "the array's dtype is not that asked for");
        self.data as *mut T
    }
}

/// The arrays of a call.
///
/// # Safety
/// They must be what the host has called a hook with.
#[doc(hidden)]
pub unsafe fn arrays<'a>(arrays: *mut Array, count: i32) -> &'a mut [Array] {
    std::slice::from_raw_parts_mut(arrays, count as usize)
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
    global::run_open();
    0
}

/// Names the function `fn()` that runs before the hook is first called. If it reads the configuration it should read all of it: keys
/// that it did not ask for are then reported to the user. The same holds for a function that builds a loss or a model.
#[macro_export]
macro_rules! open {
    ($f:path) => {
        #[export_name = "_initialize"]
        extern "C" fn gpupipe_hook_open() {
            $crate::global::on_open($f)
        }
    };
}

/// Names the functions `fn() -> Vec<u8>` and `fn(&[u8])` that give and take the module's state, which checkpoints keep. With them a
/// module is stateful: one instance of it sees everything, in order.
#[macro_export]
macro_rules! state {
    ($save:path, $load:path) => {
        #[export_name = "gpupipe_save"]
        unsafe extern "C" fn gpupipe_hook_save(to: *mut u8, room: usize) -> usize {
            let state: Vec<u8> = $save();
            if state.len() <= room {
                std::ptr::copy_nonoverlapping(state.as_ptr(), to, state.len());
            }
            state.len()
        }

        #[export_name = "gpupipe_load"]
        unsafe extern "C" fn gpupipe_hook_load(state: *const u8, length: usize) -> i32 {
            $load(std::slice::from_raw_parts(state, length));
            0
        }
    };
}

/// Names the function `fn(text: &str, keep: &mut dyn FnMut(&str))` that is called with each document; what it keeps takes the
/// document's place.
#[macro_export]
macro_rules! map_document {
    ($f:path) => {
        #[export_name = "map_document"]
        unsafe extern "C" fn gpupipe_hook_map_document(a: *mut $crate::Array, n: i32) -> i32 {
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
        #[export_name = "learning_rate"]
        unsafe extern "C" fn gpupipe_hook_learning_rate(a: *mut $crate::Array, n: i32) -> i32 {
            let a = $crate::arrays(a, n);
            let of = a[0].elements::<f64>();
            let factor: f64 = $f(of[0] as i64, of[1] as i64, of[2]);
            a[1].elements_mut::<f64>()[0] = factor;
            0
        }
    };
}

/// Names the function `fn(json: &str) -> bool` that receives each step's metrics, a line of metrics.jsonl; if it returns true the run
/// ends after the step.
#[macro_export]
macro_rules! on_metrics {
    ($f:path) => {
        #[export_name = "on_metrics"]
        unsafe extern "C" fn gpupipe_hook_on_metrics(a: *mut $crate::Array, n: i32) -> i32 {
            $f(&String::from_utf8_lossy($crate::arrays(a, n)[0].elements::<u8>())) as i32
        }
    };
}
