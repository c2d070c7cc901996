// What every kernel may use: WGSL's types, and its built-in functions of scalars, in C with GCC's vector extensions.
// The functions are written so that compilers vectorize loops of them: no branches, no calls.
//
// It includes no header of the C library: they would take longer to parse than the rest. stdbool.h is the compiler's.
#include <stdbool.h>

typedef float f32;
typedef __INT32_TYPE__ i32;
typedef __UINT32_TYPE__ u32;
typedef __INT64_TYPE__ i64;
typedef __UINT64_TYPE__ u64;
typedef __UINT16_TYPE__ u16;
typedef u16 bits16 __attribute__((may_alias)); // one of the two of a word
#define I32_MAX 0x7fffffff
#define I32_MIN (-I32_MAX - 1)
#define U32_MAX 0xffffffffu

void *memcpy(void *restrict to, const void *restrict from, __SIZE_TYPE__ n);
void *memset(void *to, int byte, __SIZE_TYPE__ n);

// gp_arg is a binding.
typedef struct { void *at; u64 bytes; } gp_arg;

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
#define VEC (VEC_BYTES / 4) // elements
typedef f32 vecf __attribute__((vector_size(VEC_BYTES)));
typedef f32 vecfu __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias)); // anywhere in memory

// WGSL's vectors. Those of three components take the place of four.
typedef f32 v2f32 __attribute__((vector_size(8)));
typedef f32 v4f32 __attribute__((vector_size(16)));
typedef f32 v3f32 __attribute__((vector_size(16)));
typedef i32 v2i32 __attribute__((vector_size(8)));
typedef i32 v4i32 __attribute__((vector_size(16)));
typedef i32 v3i32 __attribute__((vector_size(16)));
typedef u32 v2u32 __attribute__((vector_size(8)));
typedef u32 v4u32 __attribute__((vector_size(16)));
typedef u32 v3u32 __attribute__((vector_size(16)));
typedef v2i32 v2bool;
typedef v3i32 v3bool;
typedef v4i32 v4bool;

#define FN static inline __attribute__((always_inline, unused))

// fma_f32 and fma_vec are x·y + z, rounded once where the CPU has an instruction for it. Compilers contract nothing
// else, since what they contract depends on what else a kernel computes: fusing more or less into it would change bits.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
FN f32 fma_f32(f32 x, f32 y, f32 z) { return __builtin_fmaf(x, y, z); }
#else
FN f32 fma_f32(f32 x, f32 y, f32 z) { return x * y + z; }
#endif
FN vecf fma_vec(vecf x, vecf y, vecf z) {
#if defined(__clang__)
  _Pragma("clang fp contract(fast)")
  return x * y + z;
#elif VEC_BYTES == 64
  return __builtin_ia32_vfmaddps512_mask(x, y, z, -1, 4);
#elif VEC_BYTES == 32 && defined(__FMA__)
  return __builtin_ia32_vfmaddps256(x, y, z);
#elif defined(__FMA__)
  return __builtin_ia32_vfmaddps(x, y, z);
#elif defined(__aarch64__)
  return __builtin_aarch64_fmav4sf(x, y, z);
#else
  return x * y + z;
#endif
}

// within is an index that lies inside an array of n > 0 elements, at itself if it does.
FN i64 within(i64 at, u64 n) { return (u64)at < n ? at : (i64)(n - 1); }

FN u32 as_u32_f32(f32 x) { u32 y; memcpy(&y, &x, 4); return y; }
FN f32 as_f32_u32(u32 x) { f32 y; memcpy(&y, &x, 4); return y; }
#define as_u32(x) _Generic((x), f32: as_u32_f32, i32: as_u32_i32, u32: as_u32_u32)(x)
#define as_f32(x) _Generic((x), f32: as_f32_f32, i32: as_f32_i32, u32: as_f32_u32)(x)
#define as_i32(x) ((i32)as_u32(x))
FN u32 as_u32_i32(i32 x) { return (u32)x; }
FN u32 as_u32_u32(u32 x) { return x; }
FN f32 as_f32_f32(f32 x) { return x; }
FN f32 as_f32_i32(i32 x) { return as_f32_u32((u32)x); }

// Conversions of floats to integers saturate; NaN is 0.
FN i32 i32_of_f32(f32 x) { return x >= 2147483648.f ? I32_MAX : x > -2147483904.f ? (i32)x : x == x ? I32_MIN : 0; }
FN u32 u32_of_f32(f32 x) { return x >= 4294967296.f ? U32_MAX : x > 0 ? (u32)x : 0; }

FN u32 div_u32(u32 x, u32 y) { return y ? x / y : x; }
FN u32 rem_u32(u32 x, u32 y) { return y ? x % y : 0; }
FN f32 div_f32(f32 x, f32 y) { return x / y; }
FN i32 div_i32(i32 x, i32 y) { return y == 0 || (x == I32_MIN && y == -1) ? x : x / y; }
FN i32 rem_i32(i32 x, i32 y) { return y == 0 || (x == I32_MIN && y == -1) ? 0 : x % y; }
FN f32 rem_f32(f32 x, f32 y) { return x - y * __builtin_truncf(x / y); }

#define SELECT(T) FN T select_##T(T no, T yes, bool c) { return c ? yes : no; }
SELECT(f32) SELECT(i32) SELECT(u32) SELECT(bool)

// If an argument is NaN, the result of max and min is the second.
FN f32 max_f32(f32 x, f32 y) { return x > y ? x : y; }
FN f32 min_f32(f32 x, f32 y) { return x < y ? x : y; }
FN i32 max_i32(i32 x, i32 y) { return x > y ? x : y; }
FN i32 min_i32(i32 x, i32 y) { return x < y ? x : y; }
FN u32 max_u32(u32 x, u32 y) { return x > y ? x : y; }
FN u32 min_u32(u32 x, u32 y) { return x < y ? x : y; }
FN f32 clamp_f32(f32 x, f32 lo, f32 hi) { return min_f32(max_f32(x, lo), hi); }
FN i32 clamp_i32(i32 x, i32 lo, i32 hi) { return min_i32(max_i32(x, lo), hi); }
FN u32 clamp_u32(u32 x, u32 lo, u32 hi) { return min_u32(max_u32(x, lo), hi); }
FN f32 abs_f32(f32 x) { return as_f32_u32(as_u32_f32(x) & 0x7fffffffu); }
FN i32 abs_i32(i32 x) { return x < 0 ? (i32)(0u - (u32)x) : x; }
FN u32 abs_u32(u32 x) { return x; }
FN f32 sign_f32(f32 x) { return x > 0 ? 1.f : x < 0 ? -1.f : 0.f; }
FN i32 sign_i32(i32 x) { return (x > 0) - (x < 0); }
FN u32 sign_u32(u32 x) { return x > 0; }
FN f32 step_f32(f32 edge, f32 x) { return x >= edge ? 1.f : 0.f; }
FN f32 mix_f32(f32 x, f32 y, f32 a) { return x * (1.f - a) + y * a; }
FN f32 sqrt_f32(f32 x) { return __builtin_sqrtf(x); }
FN f32 inverseSqrt_f32(f32 x) { return 1.f / __builtin_sqrtf(x); }
FN f32 floor_f32(f32 x) { return __builtin_floorf(x); }
FN f32 ceil_f32(f32 x) { return __builtin_ceilf(x); }
FN f32 trunc_f32(f32 x) { return __builtin_truncf(x); }
FN f32 round_f32(f32 x) { return __builtin_rintf(x); }
FN f32 fract_f32(f32 x) { return x - __builtin_floorf(x); }
FN f32 pow_f32(f32 x, f32 y) { return __builtin_powf(x, y); }
FN f32 sin_f32(f32 x) { return __builtin_sinf(x); }
FN f32 cos_f32(f32 x) { return __builtin_cosf(x); }
FN f32 tan_f32(f32 x) { return __builtin_tanf(x); }

// exp: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a polynomial for eʳ (Cephes' coefficients), and n added to its exponent: t's
// last bits are n. Results below the normal range are zero, as those of all operations are. The error is below 2 units
// in the last place.
FN f32 exp_f32(f32 x) {
  f32 t = fma_f32(x, 1.44269504f, 12582912.f), n = t - 12582912.f;
  f32 r = fma_f32(n, -0.693359375f, x);
  r = fma_f32(n, 2.12194440e-4f, r);
  f32 p = 1.9875691500e-4f;
  p = fma_f32(p, r, 1.3981999507e-3f);
  p = fma_f32(p, r, 8.3334519073e-3f);
  p = fma_f32(p, r, 4.1665795894e-2f);
  p = fma_f32(p, r, 1.6666665459e-1f);
  p = fma_f32(p, r, 5.0000001201e-1f);
  p = fma_f32(p * r, r, r) + 1.f;
  f32 y = as_f32_u32(as_u32_f32(p) + (as_u32_f32(t) << 23));
  y = x < -87.33654f ? 0.f : y;
  return x <= 88.72283f ? y : x + __builtin_inff(); // NaN stays
}
FN f32 exp2_f32(f32 x) { return exp_f32(x * 0.693147181f); }

// log: x = 2ᵉ·m with √½ ≤ m < √2, and a polynomial for log m (Cephes' coefficients).
FN f32 log_f32(f32 x) {
  f32 scaled = x < 1.17549435e-38f ? x * 8388608.f : x; // denormals
  u32 b = as_u32_f32(scaled);
  i32 e = (i32)(b >> 23) - 126 - (x < 1.17549435e-38f ? 23 : 0);
  f32 m = as_f32_u32((b & 0x7fffffu) | 0x3f000000u); // ½ ≤ m < 1
  bool low = m < 0.707106781f;
  e -= low;
  m = (low ? m + m : m) - 1.f;
  f32 z = m * m;
  f32 p = 7.0376836292e-2f;
  p = fma_f32(p, m, -1.1514610310e-1f);
  p = fma_f32(p, m, 1.1676998740e-1f);
  p = fma_f32(p, m, -1.2420140846e-1f);
  p = fma_f32(p, m, 1.4249322787e-1f);
  p = fma_f32(p, m, -1.6668057665e-1f);
  p = fma_f32(p, m, 2.0000714765e-1f);
  p = fma_f32(p, m, -2.4999993993e-1f);
  p = fma_f32(p, m, 3.3333331174e-1f);
  f32 y = fma_f32(-0.5f, z, fma_f32(p * m, z, (f32)e * -2.12194440e-4f));
  y = fma_f32((f32)e, 0.693359375f, m + y);
  y = x == __builtin_inff() ? x : y;
  y = x == 0.f ? -__builtin_inff() : y;
  return x >= 0.f ? y : __builtin_nanf("");
}
FN f32 log2_f32(f32 x) { return log_f32(x) * 1.44269504f; }
// tanh is a polynomial near zero, where 1 − q would cancel.
FN f32 tanh_f32(f32 x) {
  f32 q = exp_f32(-2.f * abs_f32(x)), z = x * x;
  f32 y = sign_f32(x) * ((1.f - q) / (1.f + q));
  f32 small = fma_f32(x * z, fma_f32(z, fma_f32(z, -0.0539682540f, 0.133333333f), -0.333333333f), x);
  return abs_f32(x) < 0.1f ? small : y;
}

// Atomics of one thread: they return the old value.
#define ATOMIC(f, T, new) FN T atomic##f##_##T(T *p, T x) { T old = *p; *p = new; return old; }
#define ATOMICS(T) \
  FN void atomicStore_##T(T *p, T x) { *p = x; } \
  ATOMIC(Add, T, (T)((u32)old + (u32)x)) ATOMIC(Sub, T, (T)((u32)old - (u32)x)) ATOMIC(Min, T, old < x ? old : x) ATOMIC(Max, T, old > x ? old : x) \
  ATOMIC(And, T, old & x) ATOMIC(Or, T, old | x) ATOMIC(Xor, T, old ^ x) ATOMIC(Exchange, T, x)
ATOMICS(i32) ATOMICS(u32)

// Conversions of 16-bit floats, by their bits. Rounding is to nearest, ties to even; NaN stays NaN.
FN f32 widen_f32(f32 x) { return x; }
FN f32 narrow_f32(f32 x) { return x; }
FN f32 widen_bf16(u16 x) { return as_f32_u32((u32)x << 16); }
FN u16 narrow_bf16(f32 x) {
  u32 b = as_u32_f32(x);
  return (b & 0x7fffffffu) > 0x7f800000u ? (b >> 16) | 64u : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
}
FN f32 widen_f16(u16 x) {
  u32 size = x & 0x7fffu, moved = size << 13;
  u32 denormal = as_u32_f32((f32)size * 5.9604645e-08f);
  u32 finite = size < 0x400u ? denormal : moved + (112u << 23);
  return as_f32_u32((u32)(x & 0x8000u) << 16 | (size >= 0x7c00u ? moved + (224u << 23) : finite));
}
FN u16 narrow_f16(f32 x) {
  u32 b = as_u32_f32(x), size = b & 0x7fffffffu;
  u32 normal = (size - 939520001u + ((size >> 13) & 1u)) >> 13; // rebased exponent, and half a unit less one
  u32 m = (size & 0x7fffffu) | 0x800000u, s = clamp_u32(126u - (size >> 23), 14u, 25u);
  u32 denormal = (m + (1u << (s - 1u)) - 1u + ((m >> s) & 1u)) >> s; // in units of 2⁻²⁴
  u32 finite = size < 947912704u ? denormal : normal;
  // Infinite from 65520 on.
  u32 y = size > 0x7f800000u ? 0x7e00u | ((size >> 13) & 0x3ffu) : size >= 1199566848u ? 0x7c00u : finite;
  return (u16)(y | ((b >> 16) & 0x8000u));
}
