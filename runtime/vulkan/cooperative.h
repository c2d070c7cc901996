// Cooperative matrices: whether a physical device has them, and what a device must enable to use them.
#ifndef GPUPIPE_VULKAN_COOPERATIVE_H
#define GPUPIPE_VULKAN_COOPERATIVE_H

#include <stdint.h>

enum { GV_BY_EXTENSION = 2 };

typedef struct gv_cooperative { // 0 or 1, but for the last line and where it is said
	uint32_t matrices;      // of f16, with all else that kernels for them use
	uint32_t bfloat16;      // matrices of bf16 too
	uint32_t subgroup_size; // a pipeline may ask for the size of its subgroups: 1, a part of Vulkan 1.3; GV_BY_EXTENSION
	// Of VK_NV_cooperative_matrix2, where there are matrices:
	uint32_t second; // the extension
	uint32_t workgroup_scope, flexible_sizes, tensor_addressing;
	uint32_t most_invocations, largest, reserved; // of a workgroup; of a matrix's side; bytes of workgroup memory
} gv_cooperative;

enum { GV_MOST_FLEXIBLE = 64 };

// Matrices of sizes that are multiples of these (VkCooperativeMatrixFlexibleDimensionsPropertiesNV).
typedef struct gv_flexible {
	uint32_t m, n, k, a, b, c, result, saturating, scope, invocations;
} gv_flexible;

// Any of Vulkan's structs of features, or longer.
typedef struct gv_feature { uint32_t type; void *next; uint32_t on[8]; } gv_feature;
typedef struct gv_cooperative_features { gv_feature matrices, float16, storage16, memory_model, bfloat16, subgroup_size, second; } gv_cooperative_features;

static inline int gv_at_least_13(uint32_t version) { return version >= (1u << 22 | 3u << 12); }

void gv_cooperative_of(void *get, void *instance, void *physical, uint32_t version, gv_cooperative *out);

// gv_flexible_of returns how many there are of GV_MOST_FLEXIBLE at most.
uint32_t gv_flexible_of(void *get, void *instance, void *physical, gv_flexible *out);

enum { GV_COOPERATIVE_EXTENSIONS = 4 };

// gv_enable_cooperative links what a new device needs behind a struct, by means of room, which must outlive it, and
// adds to its extensions GV_COOPERATIVE_EXTENSIONS at most.
void gv_enable_cooperative(gv_cooperative const *c, gv_cooperative_features *room, void *first, char const **extensions, uint32_t *count);

#endif
