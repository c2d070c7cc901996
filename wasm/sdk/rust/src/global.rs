//! Variables of a module, and what runs when it is opened.

use std::cell::RefCell;

/// A static variable: a module has one thread.
///
/// ```ignore
/// static SEEN: gpupipe::Global<u64> = gpupipe::Global::new(0);
/// ```
pub struct Global<T>(RefCell<T>);

// Nothing runs beside a call of the host's.
unsafe impl<T> Sync for Global<T> {}

impl<T> Global<T> {
    pub const fn new(value: T) -> Self {
        Global(RefCell::new(value))
    }

    /// Changes it. Panics if it is being changed already.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }

    pub fn set(&self, value: T) {
        self.with(|x| *x = value)
    }
}

impl<T: Copy> Global<T> {
    pub fn get(&self) -> T {
        *self.0.borrow()
    }
}

static OPEN: Global<Option<fn()>> = Global::new(None);

#[doc(hidden)]
pub fn on_open(f: fn()) {
    OPEN.set(Some(f))
}

pub(crate) fn run_open() {
    if let Some(f) = OPEN.get() {
        f()
    }
}
