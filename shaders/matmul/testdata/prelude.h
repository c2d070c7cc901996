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
