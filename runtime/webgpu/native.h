// The calls of wgpu-native v22 that the Go bindings leave out or get wrong. They are linked from the library
// that github.com/cogentcore/webgpu v0.23.0 brings. No call here enters Go: callbacks write to C memory, which the
// goroutine that owns the device reads after each call.
#ifndef GPUPIPE_NATIVE_H
#define GPUPIPE_NATIVE_H

#include <stddef.h>
#include <stdint.h>

enum { GP_NO_ERROR = 0, GP_VALIDATION = 1, GP_OUT_OF_MEMORY = 2 }; // WGPUErrorType

typedef struct gp_error {
	int type;
	char msg[4096];
} gp_error;

typedef struct gp_limits {
	uint32_t bindings, offset_alignment, workgroup_memory, invocations, size_x, size_y, size_z, groups;
	uint64_t binding_size, buffer_size;
} gp_limits;

typedef struct gp_device {
	void *device, *queue;
	uint64_t submitted, done; // submissions
	int lost, timestamps; // timestamps: it has them
	char lost_msg[512];
	gp_error uncaptured; // the first error outside every scope
} gp_device;

// A dispatch when pipeline is set, else a copy.
typedef struct gp_command {
	void *pipeline, *group;
	void *src, *dst;
	uint64_t src_offset, dst_offset, size;
	uint32_t x, y, z;
} gp_command;

// Where the times of one submission's commands go: its queries, the buffer that they are resolved to, and the one for
// the host.
typedef struct gp_timer {
	void *queries, *resolved, *staging;
} gp_timer;

enum { GP_DISPATCH_STAMPS = 2, GP_COPY_STAMPS = 4 }; // of a command: the copy ran between the second and the third

enum { GP_MAP_PENDING = -1, GP_MAP_DONE = 0 }; // else a WGPUBufferMapAsyncStatus

void *gp_instance(uint32_t backends);
gp_limits gp_limits_of(void *adapter);
gp_device *gp_open(void *adapter, char const *label, gp_limits *limits, gp_error *err);
void gp_close(gp_device *d);
void gp_push(gp_device *d);
void gp_pop(gp_device *d, gp_error *err);
int gp_submit(gp_device *d, gp_command const *commands, size_t n, gp_timer const *timer, gp_error *err);
void *gp_queries(gp_device *d, uint32_t count, gp_error *err);
void gp_free_queries(void *queries);
void gp_map(gp_device *d, void *buffer, uint32_t mode, size_t size, int *status, gp_error *err);
int gp_poll(gp_device *d);

#endif
