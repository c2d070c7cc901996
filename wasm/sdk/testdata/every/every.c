// Every hook, each of which does a little with all that it is given. TestEveryHookInAllLanguages says what.
#include "gpupipe.h"

static uint32_t calls;
GP_STATE(calls)

static double scale;
static int loud;
static const char *name;

GP_OPEN() {
  scale = gp_config_number("scale", 2);
  loud = gp_config_true("loud");
  name = gp_config_text("name", "no one");
  gp_say(name);
}

GP_MAP_DOCUMENT(text, length) {
  gp_emit(text, length);
  if (loud) gp_emit(name, gp_length(name));
}

GP_MAP_BATCH(batch) {
  const gp_array *a = batch->aligned;
  for (uint32_t i = 0; i < batch->rows * batch->length; i++) {
    uint32_t token = batch->tokens[i];
    batch->tokens[i] = batch->targets[i], batch->targets[i] = token;
    batch->segments[i] = i / batch->length + (uint32_t)batch->step;
    batch->weights[i] += (float)batch->steps;
    if (batch->aligned_count) batch->weights[i] += ((const float *)a[0].data)[i * a[0].dims[2]];
  }
  calls++;
}

GP_TOKEN_WEIGHTS(batch) {
  for (uint32_t i = 0; i < batch->rows * batch->length; i++)
    batch->weights[i] *= (float)(scale * (double)(batch->step + batch->steps) + (double)batch->tokens[i] - (double)batch->targets[i]);
}

GP_LEARNING_RATE(step, steps, base) { return base * scale + (double)step / (double)steps; }

GP_ON_METRICS(json) { return gp_json_number(json, "loss", 0) > scale; }

GP_LOSS_SCALARS(step, steps, scalars) { scalars[0] = (float)step, scalars[1] = (float)((double)step / (double)steps); }

GP_LOSS_GRAD(sample) {
  for (uint32_t i = 0; i < sample->rows; i++) {
    uint32_t at = i * sample->vocab + sample->targets[i];
    sample->losses[i] = sample->logits[at];
    sample->gradient[at] = 1.f / (float)sample->rows;
  }
}

// In steps: C does not say in which order the arguments of a function are found.
GP_BUILD_LOSS_OF_INPUTS() {
  gp_value logits = gp_input("logits"), targets = gp_input("targets");
  gp_value nll = gp_cross_entropy(logits, targets);
  gp_value far = gp_mean(gp_square(gp_input("hidden")), -1, 0);
  gp_value less = gp_less(nll, gp_number(1));
  gp_value hot = gp_mul(nll, gp_scalar("heat")), cold = gp_div(nll, gp_scalar("cold"));
  gp_value heated = gp_where(less, hot, cold);
  gp_value y = gp_neg(gp_shift(gp_sub(heated, far), -0.5));
  return gp_add(y, gp_scale(gp_second(nll), 1e-3));
}

GP_BUILD_MODEL(tokens) {
  const uint32_t vocab = 256, heads = 4, d = 64, rows = gp_dim(tokens, 0), length = gp_dim(tokens, -1);
  gp_value x = gp_embedding(gp_normal("embedding", 0.02, vocab, d), tokens);
  for (int layer = 0; layer < 2; layer++) {
    gp_unit(gp_name("layer.", layer, ""));
    gp_value h = gp_rms_norm(x, gp_ones(gp_name("layer.", layer, ".norm"), d), 1e-5);
    gp_value q = gp_reshape(gp_linear(h, gp_normal(gp_name("layer.", layer, ".q"), 0.01, d, d)), rows, length, heads, d / heads);
    gp_value k = gp_rope(q, 10000), a = layer ? gp_attention(k, k, q) : gp_attention_within(k, k, q, gp_input("segments"));
    x = gp_add(x, gp_reshape(a, rows, length, -1));
  }
  gp_value norm = gp_ones("norm", d), bias = gp_zeros("bias", d);
  x = gp_layer_norm(x, norm, bias, 0.1);
  x = gp_permute(gp_slice(gp_broadcast(x, 2, rows, length, d), 0, 1, 2), 1, 0, 2, 3);
  x = gp_reshape(x, rows, length, -1);
  x = gp_softmax(x);
  return gp_linear(x, gp_normal("head", 0.02, vocab, d));
}
