// A hook for gpupipe: mean cross-entropy with a z-loss. Other hooks are GP_MAP_DOCUMENT, GP_LEARNING_RATE, GP_ON_METRICS; see gpupipe.h.
#include "gpupipe.h"

GP_BUILD_LOSS(logits, targets) {
  gp_value lse = gp_log_sum_exp(logits);
  gp_value nll = gp_sub(lse, gp_pick(logits, targets));
  return gp_add(nll, gp_scale(gp_square(lse), gp_config_number("z", 1e-4)));
}
