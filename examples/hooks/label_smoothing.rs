//! Cross-entropy with label smoothing (arXiv 1512.00567, section 7): the target has probability 1 − ε + ε/V, each other token
//! ε/V. For each token
//!
//!     −(1 − ε)·log p(target) − ε·mean over the vocabulary of log p
//!
//! Config: epsilon (0.1).
use gpupipe::{config, Value};

gpupipe::build_loss!(loss);

fn loss(logits: Value, targets: Value) -> Value {
    let epsilon = config().number("epsilon", 0.1);
    if !(0.0..1.0).contains(&epsilon) {
        panic!("config: epsilon must be at least 0 and below 1");
    }
    let log_p = logits.log_softmax();
    -(log_p.pick(targets).scale(1.0 - epsilon) + log_p.mean(&[-1], false).scale(epsilon))
}
