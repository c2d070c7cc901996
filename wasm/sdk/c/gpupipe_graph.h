// gpupipe_graph.h: losses and models, which are graphs. gpupipe.h includes it. Each function adds an op and returns its
// result; a mistake ends the call with an error that names the op.
#ifndef GPUPIPE_GRAPH_H
#define GPUPIPE_GRAPH_H

#include "gpupipe.h"

typedef struct {
  uint32_t handle;
} gp_value;

GP_IMPORT(graph_input) uint32_t gp_graph_input(const char *name, size_t length);
GP_IMPORT(graph_op)
uint32_t gp_graph_op(const char *name, size_t length, const gp_value *inputs, size_t count, const char *attributes, size_t attributes_length);
GP_IMPORT(graph_shape) int32_t gp_graph_shape(uint32_t handle, uint32_t *dims, size_t capacity);
GP_IMPORT(graph_scalar) uint32_t gp_graph_scalar(const char *name, size_t length);
GP_IMPORT(graph_parameter)
uint32_t gp_graph_parameter(const char *name, size_t length, const uint32_t *shape, size_t rank, const char *attributes, size_t attributes_length);
GP_IMPORT(graph_unit) uint32_t gp_graph_unit(const char *name, size_t length);

// ---- Losses

// GP_BUILD_LOSS returns the loss of logits f32 [N, V] and targets u32 [N]: f32 [N], of which the mean is taken, or one
// f32.
#define GP_BUILD_LOSS(logits, targets)                                                  \
  static gp_value gp_user_build_loss(gp_value logits, gp_value targets);                \
  GP_EXPORT(build_loss) int32_t gp_build_loss(const gp_array *a, int32_t n) {           \
    (void)a, (void)n;                                                                   \
    gp_arena_used = 0;                                                                  \
    return (int32_t)gp_user_build_loss(gp_input("logits"), gp_input("targets")).handle; \
  }                                                                                     \
  static gp_value gp_user_build_loss(gp_value logits, gp_value targets)

// GP_BUILD_LOSS_OF_INPUTS asks for its inputs itself, with gp_input: logits that it does not ask for are not computed.
#define GP_BUILD_LOSS_OF_INPUTS()                                             \
  static gp_value gp_user_build_loss(void);                                   \
  GP_EXPORT(build_loss) int32_t gp_build_loss(const gp_array *a, int32_t n) { \
    (void)a, (void)n;                                                         \
    gp_arena_used = 0;                                                        \
    return (int32_t)gp_user_build_loss().handle;                              \
  }                                                                           \
  static gp_value gp_user_build_loss(void)

// gp_input is a named input: of a loss "logits", "targets", "weights", "hidden", "lm_head.weight", "model.norm.weight"
// or an array of data.aligned; of a model "tokens", "segments" or "vocabulary", whose extent is the size of the
// vocabulary.
static inline gp_value gp_input(const char *name) { return (gp_value){gp_graph_input(name, gp_length(name))}; }

// gp_scalar is an f32 [] of a loss that GP_LOSS_SCALARS sets for each step.
static inline gp_value gp_scalar(const char *name) { return (gp_value){gp_graph_scalar(name, gp_length(name))}; }

// GP_LOSS_SCALARS stores the scalars of a step, in the order in which the loss first asked for them.
#define GP_LOSS_SCALARS(step, steps, scalars)                                                          \
  static void gp_user_loss_scalars(int64_t step, int64_t steps, float *scalars);                       \
  GP_EXPORT(loss_scalars) int32_t gp_loss_scalars(const gp_array *a, int32_t n) {                      \
    (void)n;                                                                                           \
    const double *clock = (const double *)a[0].data;                                                   \
    gp_arena_used = 0;                                                                                 \
    gp_user_loss_scalars((int64_t)clock[0], (int64_t)clock[1], (float *)a[1].data);                    \
    return 0;                                                                                          \
  }                                                                                                    \
  static void gp_user_loss_scalars(int64_t step, int64_t steps, float *scalars)

// gp_sample is what GP_LOSS_GRAD works on: it stores the loss of each row, and the gradient of their mean on the
// logits.
typedef struct {
  uint32_t rows, vocab;
  const float *logits;     // [rows, vocab]
  const uint32_t *targets; // [rows]
  float *losses;           // [rows]
  float *gradient;         // [rows, vocab]
} gp_sample;

// GP_LOSS_GRAD says in plain C what the loss is: gpupipe hook check compares the graph with it, and nothing else calls
// it.
#define GP_LOSS_GRAD(sample)                                                                                               \
  static void gp_user_loss_grad(const gp_sample *sample);                                                                  \
  GP_EXPORT(loss_grad) int32_t gp_loss_grad(const gp_array *a, int32_t n) {                                                \
    (void)n;                                                                                                               \
    gp_sample of = {a[0].dims[0], a[0].dims[1], a[0].data, a[1].data, a[2].data, a[3].data};                               \
    gp_arena_used = 0;                                                                                                     \
    gp_user_loss_grad(&of);                                                                                                \
    return 0;                                                                                                              \
  }                                                                                                                        \
  static void gp_user_loss_grad(const gp_sample *sample)

// ---- Ops

// gp_op applies any op of docs/HOOKS.md; attributes are a JSON object or "".
static inline gp_value gp_op(const char *name, const gp_value *inputs, size_t count, const char *attributes) {
  return (gp_value){gp_graph_op(name, gp_length(name), inputs, count, attributes, gp_length(attributes))};
}

// gp_second is the result after x, of an op that has several.
static inline gp_value gp_second(gp_value x) { return (gp_value){x.handle + 1}; }

// gp_rank and gp_dim return a value's shape; a negative axis counts from the end.
static inline int gp_rank(gp_value x) { return gp_graph_shape(x.handle, 0, 0); }
static inline uint32_t gp_dim(gp_value x, int axis) {
  uint32_t dims[8];
  int rank = gp_graph_shape(x.handle, dims, 8);
  if (axis < 0) axis += rank;
  return axis >= 0 && axis < rank ? dims[axis] : (gp_fail("gp_dim: there is no such axis"), 1);
}

#define GP_UNARY(name) \
  static inline gp_value gp_##name(gp_value x) { return gp_op(#name, &x, 1, ""); }
#define GP_BINARY(name) \
  static inline gp_value gp_##name(gp_value x, gp_value y) { return gp_op(#name, (gp_value[]){x, y}, 2, ""); }

GP_UNARY(neg) GP_UNARY(exp) GP_UNARY(log) GP_UNARY(sqrt) GP_UNARY(rsqrt) GP_UNARY(tanh) GP_UNARY(sigmoid) GP_UNARY(erf)
GP_UNARY(abs) GP_UNARY(square) GP_UNARY(reciprocal) GP_UNARY(silu) GP_UNARY(gelu) GP_UNARY(gelu_tanh) GP_UNARY(not)
GP_UNARY(squared_relu) GP_UNARY(is_finite) GP_UNARY(stop_gradient) GP_UNARY(softmax) GP_UNARY(log_softmax) GP_UNARY(transpose)
GP_BINARY(add) GP_BINARY(sub) GP_BINARY(mul) GP_BINARY(div) GP_BINARY(pow) GP_BINARY(maximum) GP_BINARY(minimum) GP_BINARY(and)
GP_BINARY(or) GP_BINARY(less) GP_BINARY(less_equal) GP_BINARY(greater) GP_BINARY(greater_equal) GP_BINARY(equal)
GP_BINARY(not_equal) GP_BINARY(pick) GP_BINARY(matmul) GP_BINARY(cross_entropy)
GP_BINARY(embedding) // embedding(table, ids)

static inline gp_value gp_where(gp_value condition, gp_value x, gp_value y) {
  return gp_op("where", (gp_value[]){condition, x, y}, 3, "");
}

// Numbers in attributes are written with hexadecimal digits, which lose nothing.
static inline void gp_put_integer(gp_text *a, int64_t v) {
  char digits[24];
  int n = 23, negative = v < 0;
  uint64_t u = negative ? -(uint64_t)v : (uint64_t)v;
  digits[n] = 0;
  do digits[--n] = (char)('0' + u % 10);
  while (u /= 10);
  if (negative) digits[--n] = '-';
  gp_put(a, digits + n);
}

static inline void gp_put_number(gp_text *a, double v) {
  union {
    double f;
    uint64_t u;
  } bits = {v};
  uint64_t fraction = bits.u & 0xfffffffffffffull;
  int exponent = (int)(bits.u >> 52 & 0x7ff);
  if (exponent == 0x7ff) {
    gp_put(a, fraction ? "\"nan\"" : bits.u >> 63 ? "\"-inf\"" : "\"inf\"");
    return;
  }
  char hex[14];
  for (int i = 0; i < 13; i++) hex[i] = "0123456789abcdef"[fraction >> (48 - 4 * i) & 15];
  hex[13] = 0;
  gp_put(a, bits.u >> 63 ? "\"-0x" : "\"0x");
  gp_put(a, exponent ? "1." : "0.");
  gp_put(a, hex);
  gp_put(a, "p");
  gp_put_integer(a, exponent ? exponent - 1023 : -1022);
  gp_put(a, "\"");
}

static inline gp_value gp_with_number(const char *op, const gp_value *inputs, size_t count, const char *name, double v) {
  gp_text a = {{0}, 0};
  gp_put(&a, "{\"");
  gp_put(&a, name);
  gp_put(&a, "\":");
  gp_put_number(&a, v);
  gp_put(&a, "}");
  return gp_op(op, inputs, count, a.text);
}

// gp_number is a constant f32 [], gp_scale c·x, gp_shift x + c, gp_softcap c·tanh(x/c).
static inline gp_value gp_number(double v) { return gp_with_number("full", 0, 0, "value", v); }
static inline gp_value gp_scale(gp_value x, double c) { return gp_with_number("scale", &x, 1, "factor", c); }
static inline gp_value gp_shift(gp_value x, double c) { return gp_with_number("shift", &x, 1, "offset", c); }
static inline gp_value gp_softcap(gp_value x, double c) { return gp_with_number("softcap", &x, 1, "cap", c); }

// gp_to_f32 converts integers.
static inline gp_value gp_to_f32(gp_value x) { return gp_op("cast", &x, 1, "{\"to\":\"f32\"}"); }

static inline gp_value gp_reduce(const char *op, gp_value x, int axis, int keep) {
  gp_text a = {{0}, 0};
  gp_put(&a, "{\"axes\":[");
  gp_put_integer(&a, axis);
  gp_put(&a, keep ? "],\"keep\":true}" : "]}");
  return gp_op(op, &x, 1, a.text);
}

// Over one axis, which leaves the shape, or with keep stays as one; a negative axis counts from the end.
static inline gp_value gp_sum(gp_value x, int axis, int keep) { return gp_reduce("sum", x, axis, keep); }
static inline gp_value gp_mean(gp_value x, int axis, int keep) { return gp_reduce("mean", x, axis, keep); }
static inline gp_value gp_max(gp_value x, int axis, int keep) { return gp_reduce("max", x, axis, keep); }
static inline gp_value gp_min(gp_value x, int axis, int keep) { return gp_reduce("min", x, axis, keep); }

// Over all axes.
static inline gp_value gp_sum_all(gp_value x) { return gp_op("sum", &x, 1, ""); }
static inline gp_value gp_mean_all(gp_value x) { return gp_op("mean", &x, 1, ""); }

static inline gp_value gp_with_integers(const char *op, gp_value x, const char *name, const int64_t *values, size_t count) {
  gp_text a = {{0}, 0};
  gp_put(&a, "{\"");
  gp_put(&a, name);
  gp_put(&a, "\":");
  for (size_t i = 0; i < count; i++) {
    gp_put(&a, i ? "," : "[");
    gp_put_integer(&a, values[i]);
  }
  gp_put(&a, "]}");
  return gp_op(op, &x, 1, a.text);
}

#define GP_LIST(type, ...) (const type[]){__VA_ARGS__}, sizeof((const type[]){__VA_ARGS__}) / sizeof(type)

// gp_reshape(x, extents…): one may be −1. gp_broadcast(x, extents…) repeats along new leading axes and those of extent
// one. gp_permute(x, axes…).
#define gp_reshape(x, ...) gp_with_integers("reshape", x, "shape", GP_LIST(int64_t, __VA_ARGS__))
#define gp_broadcast(x, ...) gp_with_integers("broadcast", x, "shape", GP_LIST(int64_t, __VA_ARGS__))
#define gp_permute(x, ...) gp_with_integers("permute", x, "axes", GP_LIST(int64_t, __VA_ARGS__))

// gp_slice keeps the coordinates from start to before limit of an axis.
static inline gp_value gp_slice(gp_value x, int axis, uint32_t start, uint32_t limit) {
  gp_text a = {{0}, 0};
  gp_put(&a, "{\"axis\":");
  gp_put_integer(&a, axis);
  gp_put(&a, ",\"start\":");
  gp_put_integer(&a, start);
  gp_put(&a, ",\"limit\":");
  gp_put_integer(&a, limit);
  gp_put(&a, "}");
  return gp_op("slice", &x, 1, a.text);
}

// gp_linear is x·wᵀ, w [outputs, inputs].
static inline gp_value gp_linear(gp_value x, gp_value w) { return gp_op("matmul", (gp_value[]){x, w}, 2, "{\"trans_b\":true}"); }

static inline gp_value gp_with_integer(const char *op, gp_value x, const char *name, int64_t v) {
  gp_text a = {{0}, 0};
  gp_put(&a, "{\"");
  gp_put(&a, name);
  gp_put(&a, "\":");
  gp_put_integer(&a, v);
  gp_put(&a, "}");
  return gp_op(op, &x, 1, a.text);
}

// gp_top_k is the k largest elements of each row of x [N, E] in descending order, [N, k]; the second result is their
// columns, u32 [N, k].
static inline gp_value gp_top_k(gp_value x, int k) { return gp_with_integer("top_k", x, "k", k); }

// gp_group_rows sorts the pairs of a token and one of its experts, ids u32 [N, k], by expert: the pair in each sorted
// row u32 [N·k]; the second result is the row of each pair, u32 [N, k], and the one after it where the rows of each
// expert begin, u32 [experts + 1].
static inline gp_value gp_group_rows(gp_value ids, int experts) { return gp_with_integer("group_rows", ids, "experts", experts); }

// gp_take is rows of x [M, D] by an index u32 […]: […, D]. The inverse u32 [M, c] lists the positions in the index that
// read each row.
static inline gp_value gp_take(gp_value x, gp_value index, gp_value inverse) {
  return gp_op("take", (gp_value[]){x, index, inverse}, 3, "");
}

// gp_grouped_linear is x·wᵀ for the rows of each expert: x [R, inputs], w [E, outputs, inputs], offsets u32 [E + 1] of
// gp_group_rows.
static inline gp_value gp_grouped_linear(gp_value x, gp_value w, gp_value offsets) {
  return gp_op("grouped_matmul", (gp_value[]){x, w, offsets}, 3, "{\"trans_b\":true}");
}

// gp_log_sum_exp is log Σ e^x along the last axis, without overflow.
static inline gp_value gp_log_sum_exp(gp_value x) {
  gp_value top = gp_stop_gradient(gp_max(x, -1, 1));
  gp_value sum = gp_sum(gp_exp(gp_sub(x, top)), -1, 0);
  return gp_add(gp_log(sum), gp_sum(top, -1, 0));
}

// ---- Models

// GP_BUILD_MODEL returns the logits f32 [B, T, V] of tokens u32 [B, T]; V is gp_dim(gp_input("vocabulary"), 0).
#define GP_BUILD_MODEL(tokens)                                                 \
  static gp_value gp_user_build_model(gp_value tokens);                        \
  GP_EXPORT(build_model) int32_t gp_build_model(const gp_array *a, int32_t n) { \
    (void)a, (void)n;                                                          \
    gp_arena_used = 0;                                                         \
    return (int32_t)gp_user_build_model(gp_input("tokens")).handle;            \
  }                                                                            \
  static gp_value gp_user_build_model(gp_value tokens)

// gp_unit begins the next unit, a piece that the model can be cut at: one f32 [B, T, d] goes from each to the next.
static inline void gp_unit(const char *name) { gp_graph_unit(name, gp_length(name)); }

// gp_name joins a name from two texts and a number between them: gp_name("layers.", 3, ".wq"). It lasts until the hook
// returns.
static inline const char *gp_name(const char *before, int64_t number, const char *after) {
  gp_text *name = gp_temp(sizeof *name);
  if (!name) return gp_fail("out of memory"), "";
  name->length = 0;
  gp_put(name, before);
  gp_put_integer(name, number);
  gp_put(name, after);
  return name->text;
}

// A parameter is an f32 that is trained: gp_normal(name, std, extents…), gp_ones(name, extents…), gp_zeros(name,
// extents…).
#define gp_normal(name, std, ...) gp_parameter_normal(name, std, GP_LIST(uint32_t, __VA_ARGS__))
#define gp_ones(name, ...) gp_parameter(name, "{\"init\":\"ones\"}", GP_LIST(uint32_t, __VA_ARGS__))
#define gp_zeros(name, ...) gp_parameter(name, "{\"init\":\"zeros\"}", GP_LIST(uint32_t, __VA_ARGS__))

static inline gp_value gp_parameter(const char *name, const char *attributes, const uint32_t *shape, size_t rank) {
  return (gp_value){gp_graph_parameter(name, gp_length(name), shape, rank, attributes, gp_length(attributes))};
}

static inline gp_value gp_parameter_normal(const char *name, double std, const uint32_t *shape, size_t rank) {
  gp_text a = {{0}, 0};
  gp_put(&a, "{\"init\":\"normal\",\"std\":");
  gp_put_number(&a, std);
  gp_put(&a, "}");
  return gp_parameter(name, a.text, shape, rank);
}

// gp_rms_norm is x/√(mean(x²) + eps)·w along the last axis, gp_layer_norm (x − mean)/√(variance + eps)·w + b.
static inline gp_value gp_rms_norm(gp_value x, gp_value w, double eps) {
  return gp_with_number("rms_norm", (gp_value[]){x, w}, 2, "eps", eps);
}
static inline gp_value gp_layer_norm(gp_value x, gp_value w, gp_value b, double eps) {
  return gp_with_number("layer_norm", (gp_value[]){x, w, b}, 3, "eps", eps);
}

// gp_rope rotates the two halves of x [B, T, H, D] by the position.
static inline gp_value gp_rope(gp_value x, double theta) { return gp_with_number("rope", &x, 1, "theta", theta); }

// gp_attention is causal: q [B, T, H, D], k and v [B, T, KV, D] give [B, T, H, D]. In gp_attention_within a token sees
// its own segment only, segments u32 [B, T].
static inline gp_value gp_attention(gp_value q, gp_value k, gp_value v) { return gp_op("attention", (gp_value[]){q, k, v}, 3, ""); }
static inline gp_value gp_attention_within(gp_value q, gp_value k, gp_value v, gp_value segments) {
  return gp_op("attention", (gp_value[]){q, k, v, segments}, 4, "");
}

#endif
