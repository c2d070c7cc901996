// gpupipe.h: hooks for gpupipe in C, version 1 of the ABI (docs/HOOKS.md). No C library is needed.
//
//	clang --target=wasm32 -O2 -mbulk-memory -nostdlib -Wl,--no-entry -Wl,--stack-first -o loss.wasm loss.c
//
// Include it in one file, and write one or several of
//
//	GP_MAP_DOCUMENT(text, length) { gp_emit(text, length); }
//	GP_MAP_BATCH(batch) { … change batch->tokens, ->targets, ->weights, ->segments }
//	GP_TOKEN_WEIGHTS(batch) { … change batch->weights }
//	GP_LEARNING_RATE(step, steps, base) { … return a double; }
//	GP_ON_METRICS(json) { … return whether to stop; }
//
// and of those in gpupipe_graph.h, which is included:
//
//	GP_BUILD_LOSS(logits, targets) { … return a gp_value; }
//	GP_BUILD_MODEL(tokens) { … return a gp_value, the logits; }
//
// GP_OPEN() { … } runs once, before the hook: the place to read the configuration, and GP_STATE(variable) keeps a
// variable.
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

// ---- Random numbers

__attribute__((import_module("wasi_snapshot_preview1"), import_name("random_get"))) int32_t gp_random_get(void *to, size_t size);

// gp_random gives 64 random bits, which depend on the hook's seed, on the number of the document, batch or step, and on
// how many were drawn for it before.
static inline uint64_t gp_random(void) {
  uint64_t x = 0;
  gp_random_get(&x, sizeof x);
  return x;
}

// gp_uniform gives a random number from 0 to below 1, gp_below a random integer from 0 to below n.
static inline double gp_uniform(void) { return (double)(gp_random() >> 11) * 0x1p-53; }
static inline uint32_t gp_below(uint32_t n) { return (uint32_t)((gp_random() >> 32) * n >> 32); }

// ---- JSON: the hook's `config` section, and metrics

static const char *gp_config = "{}";
static uint64_t gp_seed; // of the hook

void gp_user_open(void) __attribute__((weak));

// GP_OPEN is what runs before the hook is first called. If it reads the configuration it should read all of it: keys
// that it did not ask for are then reported to the user. The same holds for a function that builds a loss or a model.
#define GP_OPEN() void gp_user_open(void)

GP_EXPORT(gpupipe_open) int32_t gp_open(const char *config, size_t length, int64_t seed) {
  char *copy = gp_alloc(length + 1);
  if (!copy) return -1;
  for (size_t i = 0; i < length; i++) copy[i] = config[i];
  copy[length] = 0;
  gp_config = copy;
  gp_seed = (uint64_t)seed;
  if (gp_user_open) gp_user_open();
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

static inline void gp_fail_about(const char *key, const char *what) {
  gp_text why = {{0}, 0};
  gp_put(&why, key);
  gp_put(&why, what);
  gp_fail(why.text);
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
    gp_fail_about(key, " is not a number");
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

GP_IMPORT(config_key) void gp_config_key(const char *key, size_t length); // reports to the host that the key is known

// gp_config_find gives the value of a key of the configuration, 0 without it.
static inline const char *gp_config_find(const char *key) {
  gp_config_key(key, gp_length(key));
  return gp_json_find(gp_config, key);
}

static inline double gp_config_number(const char *key, double otherwise) {
  return gp_config_find(key) ? gp_json_number(gp_config, key, otherwise) : otherwise;
}

// gp_config_true reports whether a key of the configuration is true.
static inline int gp_config_true(const char *key) {
  const char *s = gp_config_find(key);
  if (s && *s != 't' && *s != 'f') gp_fail_about(key, " is not true or false");
  return s && *s == 't';
}

// gp_hex4 reads four hexadecimal digits.
static inline uint32_t gp_hex4(const char *s) {
  uint32_t x = 0;
  for (int i = 0; i < 4 && s[i]; i++) x = x << 4 | (uint32_t)(s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
  return x;
}

// gp_put_character writes a character as UTF-8.
static inline char *gp_put_character(char *t, uint32_t x) {
  if (x < 0x80) return *t++ = (char)x, t;
  int more = x < 0x800 ? 1 : x < 0x10000 ? 2 : 3;
  *t++ = (char)(0xff00 >> (more + 1) | x >> 6 * more); // as many ones as bytes
  while (more-- > 0) *t++ = (char)(0x80 | (x >> 6 * more & 63));
  return t;
}

// gp_config_text gives a text of the configuration, for the life of the instance.
static inline const char *gp_config_text(const char *key, const char *otherwise) {
  const char *s = gp_config_find(key);
  if (!s) return otherwise;
  size_t n = 1;
  while (s[n] && s[n] != '"') n += s[n] == '\\' && s[n + 1] ? 2 : 1;
  char *text = *s == '"' ? gp_alloc(n) : 0, *t = text; // no escape is shorter than what it stands for
  if (!text) return gp_fail_about(key, " is not a text"), otherwise;
  for (const char *end = s++ + n; s < end; s++) {
    if (*s != '\\') {
      *t++ = *s;
    } else if (*++s != 'u') {
      *t++ = *s == 'n' ? '\n' : *s == 't' ? '\t' : *s == 'r' ? '\r' : *s == 'b' ? '\b' : *s == 'f' ? '\f' : *s;
    } else {
      uint32_t x = gp_hex4(s + 1);
      s += 4;
      if (x >> 10 == 0xd800 >> 10 && s[1] == '\\' && s[2] == 'u') x = 0x10000 + ((x & 1023) << 10 | (gp_hex4(s + 3) & 1023)), s += 6;
      t = gp_put_character(t, x);
    }
  }
  *t = 0;
  return text;
}

// ---- State

// GP_STATE names a static variable that checkpoints keep: a resumed run restores its value. With it a module is
// stateful: one instance of it sees everything, in order.
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

// ---- Batches

// gp_batch is a batch of rows · length tokens, one sequence after the other. Of GP_TOKEN_WEIGHTS only weights may be
// changed, and there are no segments and no aligned arrays.
typedef struct {
  uint32_t rows, length;
  uint32_t *tokens, *targets; // [rows, length], below the vocabulary's size; the target is the token that comes next
  float *weights;             // [rows, length], of each target's loss: 1 on entry; at least 0
  uint32_t *segments;         // [rows, length]: 0 on entry; a token sees those before it in its row that have its
                              // number
  int64_t step, steps;        // counted from 0, and those of the run
  const gp_array *aligned;    // the arrays of data.aligned, in the order of their names, [rows, length, …]
  size_t aligned_count;
} gp_batch;

#define GP_BATCH_HOOK(name, batch, first)                                                                            \
  static void gp_user_##name(gp_batch *batch);                                                                       \
  GP_EXPORT(name) int32_t gp_##name(const gp_array *a, int32_t n) {                                                  \
    const int64_t *clock = (const int64_t *)a[first].data;                                                           \
    gp_batch b = {a[0].dims[0], a[0].dims[1], a[0].data, a[1].data, a[2].data, first == 4 ? a[3].data : 0, clock[0], \
                  clock[1], a + first + 1, (size_t)n - first - 1};                                                   \
    gp_arena_used = 0;                                                                                               \
    gp_user_##name(&b);                                                                                              \
    return 0;                                                                                                        \
  }                                                                                                                  \
  static void gp_user_##name(gp_batch *batch)

// GP_MAP_BATCH is called with each batch of the training, and may change what is in its arrays. GP_TOKEN_WEIGHTS comes
// after it.
#define GP_MAP_BATCH(batch) GP_BATCH_HOOK(map_batch, batch, 4)
#define GP_TOKEN_WEIGHTS(batch) GP_BATCH_HOOK(token_weights, batch, 3)

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

// GP_ON_METRICS receives each step's metrics, a JSON object; with a result other than 0 the run ends soon.
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

#include "gpupipe_graph.h"

#endif
