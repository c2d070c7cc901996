//! Batches: what is trained on, and what each token counts.

use crate::Array;

/// A batch of `rows` sequences of `length` tokens, one after the other: each slice has `rows * length` elements.
pub struct Batch<'a> {
    pub rows: usize,
    pub length: usize,
    /// Below the vocabulary's size.
    pub tokens: &'a mut [u32],
    /// The token that comes next.
    pub targets: &'a mut [u32],
    /// Of each target's loss: 1 on entry; at least 0.
    pub weights: &'a mut [f32],
    /// 0 on entry; a token sees those before it in its row that have its number.
    pub segments: &'a mut [u32],
    /// Counted from 0.
    pub step: i64,
    /// Of the run.
    pub steps: i64,
    /// The arrays of data.aligned, in the order of their names, `[rows, length, …]`.
    pub aligned: &'a mut [Array],
}

/// A batch of which the weights can be changed.
pub struct Weights<'a> {
    pub rows: usize,
    pub length: usize,
    pub tokens: &'a [u32],
    pub targets: &'a [u32],
    pub weights: &'a mut [f32],
    pub step: i64,
    pub steps: i64,
}

#[doc(hidden)]
pub fn batch(a: &mut [Array]) -> Batch<'_> {
    let (rows, length) = extents(&a[0]);
    match a {
        [tokens, targets, weights, segments, clock, aligned @ ..] => Batch {
            rows,
            length,
            tokens: tokens.elements_mut(),
            targets: targets.elements_mut(),
            weights: weights.elements_mut(),
            segments: segments.elements_mut(),
            step: clock.elements::<i64>()[0],
            steps: clock.elements::<i64>()[1],
            aligned,
        },
        _ => panic!("map_batch: {} arrays, expected at least 5", a.len()),
    }
}

#[doc(hidden)]
pub fn weights(a: &mut [Array]) -> Weights<'_> {
    let (rows, length) = extents(&a[0]);
    match a {
        [tokens, targets, weights, clock] => Weights {
            rows,
            length,
            tokens: tokens.elements(),
            targets: targets.elements(),
            weights: weights.elements_mut(),
            step: clock.elements::<i64>()[0],
            steps: clock.elements::<i64>()[1],
        },
        _ => panic!("token_weights: {} arrays, expected 4", a.len()),
    }
}

fn extents(a: &Array) -> (usize, usize) {
    (a.dims()[0] as usize, a.dims()[1] as usize)
}

/// Names the function `fn(batch: &mut Batch)` that is called with each batch of the training, and may change what is in it.
#[macro_export]
macro_rules! map_batch {
    ($f:path) => {
        #[export_name = "map_batch"]
        unsafe extern "C" fn gpupipe_hook_map_batch(a: *mut $crate::Array, n: i32) -> i32 {
            $f(&mut $crate::batch::batch($crate::arrays(a, n)));
            0
        }
    };
}

/// Names the function `fn(batch: &mut Weights)` that sets what each target counts, after all map_batch hooks.
#[macro_export]
macro_rules! token_weights {
    ($f:path) => {
        #[export_name = "token_weights"]
        unsafe extern "C" fn gpupipe_hook_token_weights(a: *mut $crate::Array, n: i32) -> i32 {
            $f(&mut $crate::batch::weights($crate::arrays(a, n)));
            0
        }
    };
}
