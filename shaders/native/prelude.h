typedef unsigned int u32;
typedef int i32;
typedef float f32;
typedef unsigned long long u64;
typedef struct { void *at; u64 bytes; } gp_arg;
