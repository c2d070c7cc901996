// GPT-2 (Radford et al., 2019): learned positions, layer norms before attention and the MLP, GELU, biases. The head is
// a matrix of its own, since a parameter is of one unit; names and shapes are otherwise those of Hugging Face's
// GPT2LMHeadModel, but that matrices are [outputs, inputs].
//
// Config: d_model (128), n_layers (4), n_heads (4). The vocabulary and the context are those of the run.
#include "gpupipe.h"

static double d, layers, heads;

static gp_value norm(gp_value x, const char *weight, const char *bias) {
  return gp_layer_norm(x, gp_ones(weight, d), gp_zeros(bias, d), 1e-5);
}

static gp_value affine(gp_value x, const char *weight, const char *bias, double std, uint32_t out, uint32_t in) {
  return gp_add(gp_linear(x, gp_normal(weight, std, out, in)), gp_zeros(bias, out));
}

#define OF(name) gp_name("transformer.h.", i, "." name ".weight"), gp_name("transformer.h.", i, "." name ".bias")

// attention over the parts q, k, v of one product.
static gp_value attention(gp_value x, int i, double residual) {
  uint32_t batch = gp_dim(x, 0), length = gp_dim(x, 1);
  gp_value qkv = affine(x, OF("attn.c_attn"), 0.02, 3 * d, d), part[3];
  for (int n = 0; n < 3; n++) part[n] = gp_reshape(gp_slice(qkv, 2, n * d, (n + 1) * d), batch, length, heads, d / heads);
  gp_value a = gp_attention_within(part[0], part[1], part[2], gp_input("segments"));
  return affine(gp_reshape(a, batch, length, d), OF("attn.c_proj"), residual, d, d);
}

static gp_value mlp(gp_value x, int i, double residual) {
  return affine(gp_gelu_tanh(affine(x, OF("mlp.c_fc"), 0.02, 4 * d, d)), OF("mlp.c_proj"), residual, d, 4 * d);
}

GP_BUILD_MODEL(tokens) {
  d = gp_config_number("d_model", 128), layers = gp_config_number("n_layers", 4), heads = gp_config_number("n_heads", 4);
  if (!(heads >= 1) || !(layers >= 1) || d != (uint32_t)d || (uint32_t)d % (uint32_t)heads) return gp_fail("d_model must be a multiple of n_heads"), tokens;
  uint32_t vocab = gp_dim(gp_input("vocabulary"), 0);
  double residual = 0.02 / __builtin_sqrt(2 * layers); // as many branches are added to x

  gp_unit("embed");
  gp_value x = gp_embedding(gp_normal("transformer.wte.weight", 0.02, vocab, d), tokens);
  x = gp_add(x, gp_normal("transformer.wpe.weight", 0.01, gp_dim(tokens, 1), d));
  for (int i = 0; i < layers; i++) {
    gp_unit(gp_name("h.", i, ""));
    x = gp_add(x, attention(norm(x, OF("ln_1")), i, residual));
    x = gp_add(x, mlp(norm(x, OF("ln_2")), i, residual));
  }
  gp_unit("head");
  return gp_linear(norm(x, "transformer.ln_f.weight", "transformer.ln_f.bias"), gp_normal("lm_head.weight", 0.02, vocab, d));
}
