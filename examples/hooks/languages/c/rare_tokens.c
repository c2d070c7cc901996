// Rare tokens count more: a target that has been seen n times before weighs 1/√(1 + n), and no less than least. The
// counts are the module's state, which checkpoints keep. Tokens whose numbers differ by a multiple of 65,536 are
// counted together.
//
// Config: least (0.1).
#include "gpupipe.h"

static uint32_t seen[1 << 16];
GP_STATE(seen)

static double least;

GP_OPEN() { least = gp_config_number("least", 0.1); }

GP_TOKEN_WEIGHTS(batch) {
  for (uint32_t i = 0; i < batch->rows * batch->length; i++) {
    uint32_t *n = &seen[batch->targets[i] & 0xffff];
    double weight = 1 / __builtin_sqrt(1 + (double)(*n)++);
    batch->weights[i] = (float)(batch->weights[i] * (weight > least ? weight : least));
  }
}
