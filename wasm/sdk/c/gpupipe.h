// gpupipe.h: hooks for gpupipe in C, version 1 of the ABI (docs/HOOKS.md). One header, no C library.
//
//	clang --target=wasm32 -O2 -mbulk-memory -nostdlib -Wl,--no-entry -Wl,--stack-first -o loss.wasm loss.c
//
// Include it in one file, and write one of
//
//	GP_BUILD_LOSS(logits, targets) { … return a gp_value; }
//	GP_MAP_DOCUMENT(text, length) { gp_emit(text, length); }
//	GP_LEARNING_RATE(step, steps, base) { … return a double; }
//	GP_ON_METRICS(json) { … return whether to stop; }
#ifndef GPUPIPE_H
#define GPUPIPE_H

#include <stddef.h>
#include <stdint.h>

#define GP_IMPORT(name) __attribute__((import_module("gpupipe"), import_name(#name)))
#define GP_EXPORT(name) __attribute__((export_name(#name)))

// ---- The host's functions

GP_IMPORT(log) void gp_log_bytes(const char *text, size_t length);
GP_IMPORT(fail) void gp_fail_bytes(const char *text, size_t length);

static inline size_t gp_length(const char *s) {
  size_t n = 0;
  while (s[n]) n++;
  return n;
}

// gp_say writes a line for the user; gp_fail says why the call fails, which should then return.
static inline void gp_say(const char *s) { gp_log_bytes(s, gp_length(s)); }
static inline void gp_fail(const char *s) { gp_fail_bytes(s, gp_length(s)); }

// ---- Short texts

typedef struct {
  char text[160];
  size_t length;
} gp_text;

static inline void gp_put(gp_text *a, const char *s) {
  while (*s && a->length + 1 < sizeof a->text) a->text[a->length++] = *s++;
  a->text[a->length] = 0;
}

// ---- Memory

extern unsigned char __heap_base;
static uintptr_t gp_top;

// gp_alloc gives memory for the life of the instance, 16-byte aligned, or 0.
static inline void *gp_alloc(size_t size) {
  if (!gp_top) gp_top = ((uintptr_t)&__heap_base + 15) & ~(uintptr_t)15;
  uint64_t end = (uint64_t)gp_top + size, have = (uint64_t)__builtin_wasm_memory_size(0) << 16;
  if (end > 0xfffffff0u) return 0;
  if (end > have && __builtin_wasm_memory_grow(0, (end - have + 0xffff) >> 16) == SIZE_MAX) return 0;
  void *p = (void *)gp_top;
  gp_top = ((uintptr_t)end + 15) & ~(uintptr_t)15;
  return p;
}

static unsigned char *gp_arena;
static size_t gp_arena_size, gp_arena_used;

// gp_temp gives memory until the hook returns, 16-byte aligned, or 0.
static inline void *gp_temp(size_t size) {
  if (size > 0x7fffffff) return 0;
  size = (size + 15) & ~(size_t)15;
  if (size > gp_arena_size - gp_arena_used) {
    size_t room = 2 * gp_arena_size > size ? 2 * gp_arena_size : size < 65536 ? 65536 : size;
    unsigned char *arena = gp_alloc(room);
    if (!arena) return 0;
    gp_arena = arena, gp_arena_size = room, gp_arena_used = 0;
  }
  void *p = gp_arena + gp_arena_used;
  gp_arena_used += size;
  return p;
}

GP_EXPORT(gpupipe_abi_v1) int32_t gp_abi_v1(void) { return 0; }
GP_EXPORT(gpupipe_alloc) void *gp_host_alloc(size_t size) { return gp_alloc(size); }

// ---- JSON: the hook's `config` section, and metrics

static const char *gp_config = "{}";
static uint64_t gp_seed; // of the hook

GP_EXPORT(gpupipe_open) int32_t gp_open(const char *config, size_t length, int64_t seed) {
  char *copy = gp_alloc(length + 1);
  if (!copy) return -1;
  for (size_t i = 0; i < length; i++) copy[i] = config[i];
  copy[length] = 0;
  gp_config = copy;
  gp_seed = (uint64_t)seed;
  return 0;
}

static inline const char *gp_space(const char *s) {
  while (*s == ' ' || *s == '\n' || *s == '\t' || *s == '\r') s++;
  return s;
}

// gp_skip passes over a JSON value.
static inline const char *gp_skip(const char *s) {
  int depth = 0, quoted = 0;
  for (; *s; s++) {
    if (quoted) {
      if (*s == '\\' && s[1]) s++;
      else if (*s == '"') quoted = 0;
    } else if (*s == '"') quoted = 1;
    else if (*s == '{' || *s == '[') depth++;
    else if (*s == '}' || *s == ']') {
      if (depth-- == 0) return s;
    } else if (*s == ',' && depth == 0) return s;
  }
  return s;
}

// gp_json_find gives the value of a key of a JSON object, 0 without it.
static inline const char *gp_json_find(const char *json, const char *key) {
  const char *s = gp_space(json);
  if (*s++ != '{') return 0;
  for (s = gp_space(s); *s == '"'; s = gp_space(s)) {
    const char *name = ++s;
    size_t n = 0;
    while (*s && *s != '"') s += *s == '\\' && s[1] ? 2 : 1;
    n = (size_t)(s - name);
    s = gp_space(*s ? s + 1 : s);
    if (*s == ':') s++;
    s = gp_space(s);
    size_t i = 0;
    while (i < n && key[i] && key[i] == name[i]) i++;
    if (i == n && !key[i]) return s;
    s = gp_skip(s);
    if (*s == ',') s++;
  }
  return 0;
}

// gp_json_number gives a number of a JSON object. It is exact for up to 15 digits and powers of ten from 1e-22 to 1e22.
static inline double gp_json_number(const char *json, const char *key, double otherwise) {
  const char *s = gp_json_find(json, key);
  if (!s) return otherwise;
  int negative = *s == '-', digits = 0, exponent = 0, point = 0;
  uint64_t m = 0;
  const char *first = s += negative;
  for (; (*s >= '0' && *s <= '9') || (*s == '.' && !point); s++) {
    if (*s == '.') point = 1;
    else if (digits < 18) m = m * 10 + (uint64_t)(*s - '0'), digits += m > 0, exponent -= point;
    else exponent += !point;
  }
  if (s == first) {
    gp_text why = {{0}, 0};
    gp_put(&why, key);
    gp_put(&why, " is not a number");
    gp_fail(why.text);
    return otherwise;
  }
  if (*s == 'e' || *s == 'E') {
    int minus = *++s == '-', e = 0;
    if (*s == '-' || *s == '+') s++;
    for (; *s >= '0' && *s <= '9'; s++) e = e < 9999 ? e * 10 + *s - '0' : e;
    exponent += minus ? -e : e;
  }
  double x = (double)m, power = 1;
  for (int n = exponent < 0 ? -exponent : exponent; n > 0 && power < 1e300; n--) power *= 10;
  x = exponent < 0 ? x / power : x * power;
  return negative ? -x : x;
}

// gp_config_number gives a number of the configuration.
static inline double gp_config_number(const char *key, double otherwise) { return gp_json_number(gp_config, key, otherwise); }

// gp_config_true tells whether a key of the configuration is true.
static inline int gp_config_true(const char *key) {
  const char *s = gp_json_find(gp_config, key);
  return s && s[0] == 't';
}

// ---- State

// GP_STATE names a static variable that checkpoints keep: a run that goes on gives it the value that it had.
#define GP_STATE(variable)                                                                       \
  GP_EXPORT(gpupipe_save) int32_t gp_save(void *gp_to, size_t gp_room) {                         \
    if (gp_room >= sizeof(variable)) __builtin_memcpy(gp_to, &(variable), sizeof(variable));     \
    return (int32_t)sizeof(variable);                                                            \
  }                                                                                              \
  GP_EXPORT(gpupipe_load) int32_t gp_load(const void *gp_from, size_t gp_size) {                 \
    if (gp_size != sizeof(variable)) return -1;                                                  \
    __builtin_memcpy(&(variable), gp_from, sizeof(variable));                                    \
    return 0;                                                                                    \
  }

// ---- Arrays: what hooks are called with

typedef struct {
  uint32_t dtype, flags, rank, dims[4];
  void *data;
} gp_array;

enum { GP_F32 = 1, GP_I32, GP_U8, GP_I64, GP_U32, GP_F64 };

// ---- Documents

GP_IMPORT(emit) void gp_emit(const char *text, size_t length); // keeps a document; any number of them a call

// GP_MAP_DOCUMENT is called with each document, UTF-8; what it emits takes the document's place.
#define GP_MAP_DOCUMENT(text, length)                                             \
  static void gp_user_map_document(const char *text, size_t length);              \
  GP_EXPORT(map_document) int32_t gp_map_document(const gp_array *a, int32_t n) { \
    (void)n;                                                                      \
    gp_arena_used = 0;                                                            \
    gp_user_map_document((const char *)a[0].data, a[0].dims[0]);                  \
    return 0;                                                                     \
  }                                                                               \
  static void gp_user_map_document(const char *text, size_t length)

// ---- The learning rate

// GP_LEARNING_RATE returns the factor on all learning rates of a step; base is what the schedule of the config gives.
#define GP_LEARNING_RATE(step, steps, base)                                              \
  static double gp_user_learning_rate(int64_t step, int64_t steps, double base);         \
  GP_EXPORT(learning_rate) int32_t gp_learning_rate(const gp_array *a, int32_t n) {      \
    (void)n;                                                                             \
    const double *in = (const double *)a[0].data;                                        \
    gp_arena_used = 0;                                                                   \
    *(double *)a[1].data = gp_user_learning_rate((int64_t)in[0], (int64_t)in[1], in[2]); \
    return 0;                                                                            \
  }                                                                                      \
  static double gp_user_learning_rate(int64_t step, int64_t steps, double base)

// ---- Metrics

// GP_ON_METRICS is told of each step, a JSON object; with a result other than 0 the run ends soon.
#define GP_ON_METRICS(json)                                                   \
  static int gp_user_on_metrics(const char *json);                            \
  GP_EXPORT(on_metrics) int32_t gp_on_metrics(const gp_array *a, int32_t n) { \
    (void)n;                                                                  \
    gp_arena_used = 0;                                                        \
    char *text = gp_temp(a[0].dims[0] + 1);                                   \
    if (!text) return -1;                                                     \
    __builtin_memcpy(text, a[0].data, a[0].dims[0]);                          \
    text[a[0].dims[0]] = 0;                                                   \
    return gp_user_on_metrics(text) ? 1 : 0;                                  \
  }                                                                           \
  static int gp_user_on_metrics(const char *json)

// ---- Graphs: each function adds an op and returns its result. A mistake ends the call with an error that names the op.

typedef struct {
  uint32_t handle;
} gp_value;

GP_IMPORT(graph_input) uint32_t gp_graph_input(const char *name, size_t length);
GP_IMPORT(graph_op)
uint32_t gp_graph_op(const char *name, size_t length, const gp_value *inputs, size_t count, const char *attributes, size_t attributes_length);
GP_IMPORT(graph_shape) int32_t gp_graph_shape(uint32_t handle, uint32_t *dims, size_t capacity);

// GP_BUILD_LOSS returns the loss of logits f32 [N, V] and targets u32 [N]: f32 [N], of which the mean is taken, or one f32.
#define GP_BUILD_LOSS(logits, targets)                                                                         \
  static gp_value gp_user_build_loss(gp_value logits, gp_value targets);                                       \
  GP_EXPORT(build_loss) int32_t gp_build_loss(const gp_array *a, int32_t n) {                                  \
    (void)a, (void)n;                                                                                          \
    return (int32_t)gp_user_build_loss(gp_input("logits"), gp_input("targets")).handle;                        \
  }                                                                                                            \
  static gp_value gp_user_build_loss(gp_value logits, gp_value targets)

static inline gp_value gp_input(const char *name) { return (gp_value){gp_graph_input(name, gp_length(name))}; }

// gp_op applies any op of docs/HOOKS.md; attributes are a JSON object or "".
static inline gp_value gp_op(const char *name, const gp_value *inputs, size_t count, const char *attributes) {
  return (gp_value){gp_graph_op(name, gp_length(name), inputs, count, attributes, gp_length(attributes))};
}

// gp_second is the result after x, of an op that has two.
static inline gp_value gp_second(gp_value x) { return (gp_value){x.handle + 1}; }

// gp_rank and gp_dim tell a value's shape; a negative axis counts from the end.
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
GP_UNARY(is_finite) GP_UNARY(stop_gradient) GP_UNARY(softmax) GP_UNARY(log_softmax) GP_UNARY(transpose)
GP_BINARY(add) GP_BINARY(sub) GP_BINARY(mul) GP_BINARY(div) GP_BINARY(pow) GP_BINARY(maximum) GP_BINARY(minimum) GP_BINARY(and)
GP_BINARY(or) GP_BINARY(less) GP_BINARY(less_equal) GP_BINARY(greater) GP_BINARY(greater_equal) GP_BINARY(equal)
GP_BINARY(not_equal) GP_BINARY(pick) GP_BINARY(embedding) GP_BINARY(matmul) GP_BINARY(cross_entropy)

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

// gp_number is a constant f32 [], gp_scale c·x, gp_shift x + c.
static inline gp_value gp_number(double v) { return gp_with_number("full", 0, 0, "value", v); }
static inline gp_value gp_scale(gp_value x, double c) { return gp_with_number("scale", &x, 1, "factor", c); }
static inline gp_value gp_shift(gp_value x, double c) { return gp_with_number("shift", &x, 1, "offset", c); }

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

// gp_log_sum_exp is log Σ e^x along the last axis, without overflow.
static inline gp_value gp_log_sum_exp(gp_value x) {
  gp_value top = gp_stop_gradient(gp_max(x, -1, 1));
  gp_value sum = gp_sum(gp_exp(gp_sub(x, top)), -1, 0);
  return gp_add(gp_log(sum), gp_sum(top, -1, 0));
}

#endif
