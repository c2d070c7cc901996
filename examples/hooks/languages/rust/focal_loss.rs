//! Focal loss (arXiv 1708.02002, equation 4) with the z-loss of PaLM (arXiv 2204.02311, section 5): for each token
//!
//!     (1 − p)^γ · (−log p) + z · (log Σ e^logits)²,  p the target's probability
//!
//! Config: gamma (2), z (1e-4).
use gpupipe::{config, Value};

gpupipe::build_loss!(loss);

fn loss(logits: Value, targets: Value) -> Value {
    let (gamma, z) = (config().number("gamma", 2.0), config().number("z", 1e-4));
    let lse = logits.log_sum_exp();
    let nll = lse - logits.pick(targets); // −log p
    let miss = (-(-nll).exp()).shift(1.0);
    let focus = if gamma == 2.0 { miss.square() } else { miss.maximum(1e-12).pow(gamma) };
    focus * nll + lse.square().scale(z)
}
