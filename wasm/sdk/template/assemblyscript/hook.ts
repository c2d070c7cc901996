// A hook for gpupipe: mean cross-entropy with a z-loss. gpupipe/index.ts lists the other hooks.
import { config, Value } from "gpupipe";

export function buildLoss(logits: Value, targets: Value): Value {
  const lse = logits.logSumExp();
  const nll = lse - logits.pick(targets);
  return nll + lse.square().scale(config().number("z", 1e-4));
}
