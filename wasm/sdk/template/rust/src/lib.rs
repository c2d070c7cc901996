//! A hook for gpupipe: mean cross-entropy with a z-loss. Other hooks are macros of the crate, too.
use gpupipe::{config, Value};

gpupipe::build_loss!(loss);

fn loss(logits: Value, targets: Value) -> Value {
    let lse = logits.log_sum_exp();
    lse - logits.pick(targets) + lse.square().scale(config().number("z", 1e-4))
}
