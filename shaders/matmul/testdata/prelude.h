// What kernels expect of the device's prelude.
#include <stdint.h>
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;
typedef float f32;
typedef struct { void *at; u64 bytes; } gp_arg;
#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
typedef f32 vecf __attribute__((vector_size(VEC_BYTES)));
typedef f32 vecfu __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
#define FN static inline __attribute__((always_inline, unused))
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
