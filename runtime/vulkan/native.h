// What the Go bindings, made for Vulkan 1.1.88, lack: timeline semaphores, the queries of later versions, and recording
// of many commands in one call. And what they get wrong: they keep lists of structs in memory that a finalizer frees,
// which may be while Vulkan reads it, so no call with such a list goes through them. Structs are declared by hand, as
// the Vulkan registry lays them out: no headers need be installed.
#ifndef GPUPIPE_VULKAN_NATIVE_H
#define GPUPIPE_VULKAN_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#include "cooperative.h"

enum { GV_MOST_SHAPES = 64 };

// A shape of matrices that subgroups multiply (VkCooperativeMatrixPropertiesKHR).
typedef struct gv_shape {
	uint32_t m, n, k, a, b, c, result, saturating, scope;
} gv_shape;

// What a physical device can do beyond Vulkan 1.0.
typedef struct gv_abilities {
	uint32_t timeline, robustness2, pipeline_robustness, zero_workgroup, float16, storage16, subgroup_size, subgroup_min, subgroup_max, subgroup_operations;
	uint64_t allocation_size, buffer_size; // largest, in bytes; 0: unknown
	char driver_name[256], driver_info[256];
	uint32_t shape_count;
	gv_shape shapes[GV_MOST_SHAPES];
} gv_abilities;

// A device, its one queue and its timeline: submission n brings it to n.
typedef struct gv_device gv_device;

// A dispatch when pipeline is set, a copy when src is, else zeros for dst.
typedef struct gv_command {
	uint64_t pipeline, layout, set;
	uint64_t src, dst, src_offset, dst_offset, size;
	uint32_t x, y, z;
	uint32_t barrier; // before it: it waits for the commands before
} gv_command;

// What a dispatch need not bind again.
typedef struct gv_bound {
	uint64_t pipeline, set;
} gv_bound;

// One storage buffer of a descriptor set.
typedef struct gv_binding {
	uint64_t set, buffer, offset, size;
	uint32_t binding, unused;
} gv_binding;

// Functions that return an int return a VkResult.
void *gv_load(char const *library);
void gv_abilities_of(void *get, void *instance, void *physical, uint32_t version, int has_robustness2, int has_pipeline_robustness, int has_sizes, int has_shapes,
	gv_abilities *out);
int gv_has_extension(void *get, void *instance, void *physical, char const *name);
int gv_compute_family(void *get, void *instance, void *physical);
int gv_new_device(void *get, void *instance, void *physical, uint32_t family, int robustness2, int pipeline_robustness, int zero_workgroup, int import,
	gv_cooperative const *c, void **device);
gv_device *gv_open(void *get, void *instance, void *device, void *queue, uint32_t family, int *result);
void gv_close(gv_device *d);
int gv_new_commands(gv_device *d, void **commands);
void gv_free_commands(gv_device *d, void *commands);
int gv_begin(gv_device *d, void *commands, int again);
void gv_put(gv_device *d, void *commands, gv_command const *c, gv_bound *bound);
int gv_end(gv_device *d, void *commands);
int gv_record(gv_device *d, void *commands, gv_command const *c, size_t n, int again);
int gv_submit(gv_device *d, void *const *commands, size_t n, uint64_t value);
int gv_wait(gv_device *d, uint64_t value, uint64_t nanoseconds);
int gv_done(gv_device *d, uint64_t *value);
void gv_bind(gv_device *d, gv_binding const *b, size_t n);
int gv_new_layout(gv_device *d, uint32_t bindings, uint64_t *set, uint64_t *pipeline);
void gv_free_layout(gv_device *d, uint64_t set, uint64_t pipeline);
int gv_new_pool(gv_device *d, uint32_t sets, uint32_t descriptors, uint64_t *pool);
void gv_free_pool(gv_device *d, uint64_t pool);
int gv_new_set(gv_device *d, uint64_t pool, uint64_t layout, uint64_t *set);
int gv_new_pipeline(gv_device *d, uint64_t cache, uint64_t layout, uint32_t const *code, size_t size, uint32_t subgroup, int trusted, uint64_t *pipeline);
void gv_free_pipeline(gv_device *d, uint64_t pipeline);

#endif
