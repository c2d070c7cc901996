// Focal loss (arXiv 1708.02002, equation 4) with the z-loss of PaLM (arXiv 2204.02311, section 5): for each token
//
//	(1 − p)^γ · (−log p) + z · (log Σ e^logits)²,  p the target's probability
//
// Config: gamma (2), z (1e-4).
import { config, Value } from "gpupipe";

export function buildLoss(logits: Value, targets: Value): Value {
  const gamma = config().number("gamma", 2),
    z = config().number("z", 1e-4);
  const lse = logits.logSumExp();
  const nll = lse - logits.pick(targets); // −log p
  const miss = (-(-nll).exp()).shift(1);
  const focus = gamma == 2 ? miss.square() : miss.maximum(Value.number(1e-12)).pow(Value.number(gamma));
  return focus * nll + lse.square().scale(z);
}
