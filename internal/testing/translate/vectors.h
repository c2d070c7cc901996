// Functions of vectors, component by component. Products of integers wrap.
#define TIMES_f32
#define TIMES_i32 (u32)
#define TIMES_u32
#define SPLAT(n, T) \
  FN v##n##T splat_v##n##T(T x) { v##n##T y; for (int i = 0; i < n; i++) y[i] = x; return y; } \
  FN v##n##T select_v##n##T(v##n##T no, v##n##T yes, v##n##i32 c) { v##n##T y; for (int i = 0; i < n; i++) y[i] = c[i] ? yes[i] : no[i]; return y; } \
  FN T dot_v##n##T(v##n##T x, v##n##T y) { T s = (T)(TIMES_##T x[0] * TIMES_##T y[0]); for (int i = 1; i < n; i++) s = (T)(TIMES_##T s + TIMES_##T x[i] * TIMES_##T y[i]); return s; }
SPLAT(2, f32) SPLAT(3, f32) SPLAT(4, f32) SPLAT(2, u32) SPLAT(3, u32) SPLAT(4, u32) SPLAT(2, i32) SPLAT(3, i32) SPLAT(4, i32)
#define EACH1(f, n, T) FN v##n##T f##_v##n##T(v##n##T x) { v##n##T y; for (int i = 0; i < n; i++) y[i] = f##_##T(x[i]); return y; }
#define EACH2(f, n, T) FN v##n##T f##_v##n##T(v##n##T x, v##n##T z) { v##n##T y; for (int i = 0; i < n; i++) y[i] = f##_##T(x[i], z[i]); return y; }
#define EACH3(f, n, T) FN v##n##T f##_v##n##T(v##n##T x, v##n##T z, v##n##T w) { v##n##T y; for (int i = 0; i < n; i++) y[i] = f##_##T(x[i], z[i], w[i]); return y; }
#define FLOATS(EACH, f) EACH(f, 2, f32) EACH(f, 3, f32) EACH(f, 4, f32)
#define INTEGERS(EACH, f) EACH(f, 2, i32) EACH(f, 3, i32) EACH(f, 4, i32) EACH(f, 2, u32) EACH(f, 3, u32) EACH(f, 4, u32)
#define ALL(EACH, f) FLOATS(EACH, f) INTEGERS(EACH, f)
INTEGERS(EACH2, div) FLOATS(EACH2, rem) INTEGERS(EACH2, rem)
ALL(EACH1, abs) ALL(EACH1, sign) ALL(EACH2, min) ALL(EACH2, max) ALL(EACH3, clamp)
FLOATS(EACH1, exp) FLOATS(EACH1, exp2) FLOATS(EACH1, log) FLOATS(EACH1, log2) FLOATS(EACH1, sqrt) FLOATS(EACH1, inverseSqrt)
FLOATS(EACH1, tanh) FLOATS(EACH1, sin) FLOATS(EACH1, cos) FLOATS(EACH1, tan) FLOATS(EACH1, floor) FLOATS(EACH1, ceil)
FLOATS(EACH1, round) FLOATS(EACH1, trunc) FLOATS(EACH1, fract) FLOATS(EACH2, pow) FLOATS(EACH2, step) FLOATS(EACH3, fma) FLOATS(EACH3, mix)
#define TRUTH(n) \
  FN v##n##bool splat_v##n##bool(i32 x) { return splat_v##n##i32(x); } \
  FN v##n##bool select_v##n##bool(v##n##bool no, v##n##bool yes, v##n##bool c) { return select_v##n##i32(no, yes, c); } \
  FN bool any_v##n(v##n##bool x) { bool y = false; for (int i = 0; i < n; i++) y = y || x[i]; return y; } \
  FN bool all_v##n(v##n##bool x) { bool y = true; for (int i = 0; i < n; i++) y = y && x[i]; return y; }
TRUTH(2) TRUTH(3) TRUTH(4)
