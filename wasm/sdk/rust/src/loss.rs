//! Losses.

use crate::Array;

/// Names the function `fn(logits: Value, targets: Value) -> Value` that builds the loss of logits f32 `[N, V]` and targets
/// u32 `[N]`: f32 `[N]`, of which the mean is taken, or one f32.
#[macro_export]
macro_rules! build_loss {
    ($f:path) => {
        #[export_name = "build_loss"]
        extern "C" fn gpupipe_hook_build_loss(_: *mut $crate::Array, _: i32) -> i32 {
            $f($crate::Value::input("logits"), $crate::Value::input("targets")).handle() as i32
        }
    };
}

/// Names the function `fn() -> Value` that builds the loss and asks for its inputs itself, with `Value::input`: logits that it
/// does not ask for are not computed. See [`build_loss!`].
#[macro_export]
macro_rules! build_loss_of_inputs {
    ($f:path) => {
        #[export_name = "build_loss"]
        extern "C" fn gpupipe_hook_build_loss(_: *mut $crate::Array, _: i32) -> i32 {
            $f().handle() as i32
        }
    };
}

/// Names the function `fn(step: i64, steps: i64, scalars: &mut [f32])` that stores the scalars of a step, in the order in which the
/// loss first asked for them with `Value::scalar`.
#[macro_export]
macro_rules! loss_scalars {
    ($f:path) => {
        #[export_name = "loss_scalars"]
        unsafe extern "C" fn gpupipe_hook_loss_scalars(a: *mut $crate::Array, n: i32) -> i32 {
            let a = $crate::arrays(a, n);
            let (step, steps) = (a[0].elements::<f64>()[0], a[0].elements::<f64>()[1]);
            $f(step as i64, steps as i64, a[1].elements_mut::<f32>());
            0
        }
    };
}

/// What [`loss_grad!`] works on: it stores the loss of each row, and the gradient of their mean on the logits.
pub struct Sample<'a> {
    pub rows: usize,
    pub vocab: usize,
    /// `[rows, vocab]`.
    pub logits: &'a [f32],
    pub targets: &'a [u32],
    pub losses: &'a mut [f32],
    /// `[rows, vocab]`.
    pub gradient: &'a mut [f32],
}

#[doc(hidden)]
pub fn sample(a: &mut [Array]) -> Sample<'_> {
    let (rows, vocab) = (a[0].dims()[0] as usize, a[0].dims()[1] as usize);
    match a {
        [logits, targets, losses, gradient] => Sample {
            rows,
            vocab,
            logits: logits.elements(),
            targets: targets.elements(),
            losses: losses.elements_mut(),
            gradient: gradient.elements_mut(),
        },
        _ => panic!("loss_grad: {} arrays, expected 4", a.len()),
    }
}

/// Names the function `fn(sample: &mut Sample)` that says in plain Rust what the loss is: gpupipe hook check compares the graph with it,
/// and nothing else calls it.
#[macro_export]
macro_rules! loss_grad {
    ($f:path) => {
        #[export_name = "loss_grad"]
        unsafe extern "C" fn gpupipe_hook_loss_grad(a: *mut $crate::Array, n: i32) -> i32 {
            $f(&mut $crate::loss::sample($crate::arrays(a, n)));
            0
        }
    };
}
