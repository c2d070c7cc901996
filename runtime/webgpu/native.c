#include "native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Declarations as in webgpu.h and wgpu.h of wgpu-native v22; handles are plain pointers.
typedef struct chained { struct chained const *next; int type; } chained;
typedef struct {
	uint32_t texture1d, texture2d, texture3d, texture_layers, bind_groups, bind_groups_plus_vertex, bindings_per_group,
		dynamic_uniform, dynamic_storage, sampled_textures, samplers, storage_buffers, storage_textures, uniform_buffers;
	uint64_t uniform_binding_size, storage_binding_size;
	uint32_t uniform_alignment, storage_alignment, vertex_buffers;
	uint64_t buffer_size;
	uint32_t vertex_attributes, vertex_stride, interstage_components, interstage_variables, color_attachments,
		color_bytes, workgroup_storage, invocations, size_x, size_y, size_z, groups;
} native_limits;
typedef struct { void *next; native_limits limits; } supported_limits;
typedef struct { chained chain; uint32_t push_constant_size, non_sampler_bindings; } limits_extras;
typedef struct { chained const *next; native_limits limits; } required_limits;
typedef void (*error_callback)(int type, char const *msg, void *user);
typedef void (*lost_callback)(int reason, char const *msg, void *user);
typedef void (*request_callback)(int status, void *device, char const *msg, void *user);
typedef void (*status_callback)(int status, void *user);
typedef struct {
	chained const *next;
	char const *label;
	size_t feature_count;
	int const *features;
	required_limits const *limits;
	struct { chained const *next; char const *label; } queue;
	lost_callback lost;
	void *lost_user;
	struct { chained const *next; error_callback callback; void *user; } uncaptured;
} device_descriptor;

typedef struct {
	chained chain;
	uint32_t backends, flags;
	int dx12_compiler, gles_version;
	char const *dxil, *dxc;
} instance_extras;

typedef struct { void *queries; uint32_t beginning, end; } timestamp_writes;
typedef struct { chained const *next; char const *label; timestamp_writes const *writes; } pass_descriptor;
typedef struct { chained const *next; char const *label; int type; uint32_t count; } query_set_descriptor;

enum { TIMESTAMP_QUERY = 3, TIMESTAMPS = 1 }; // WGPUFeatureName, WGPUQueryType
enum { LIMITS_EXTRAS = 0x00030002, INSTANCE_EXTRAS = 0x00030006, FILTER_VALIDATION = 0, FILTER_OUT_OF_MEMORY = 1 };

extern void *wgpuCreateInstance(chained const *const *descriptor);
extern uint32_t wgpuAdapterGetLimits(void *adapter, supported_limits *limits);
extern uint32_t wgpuAdapterHasFeature(void *adapter, int feature);
extern void wgpuAdapterRequestDevice(void *adapter, device_descriptor const *d, request_callback cb, void *user);
extern void *wgpuDeviceGetQueue(void *device);
extern void wgpuDeviceRelease(void *device);
extern void wgpuQueueRelease(void *queue);
extern void wgpuDevicePushErrorScope(void *device, int filter);
extern void wgpuDevicePopErrorScope(void *device, error_callback cb, void *user);
extern uint32_t wgpuDevicePoll(void *device, uint32_t wait, void const *index);
extern void *wgpuDeviceCreateCommandEncoder(void *device, void const *descriptor);
extern void *wgpuCommandEncoderBeginComputePass(void *encoder, void const *descriptor);
extern void wgpuCommandEncoderCopyBufferToBuffer(void *encoder, void *src, uint64_t so, void *dst, uint64_t d, uint64_t n);
extern void wgpuCommandEncoderResolveQuerySet(void *encoder, void *queries, uint32_t first, uint32_t n, void *dst, uint64_t d);
extern void *wgpuDeviceCreateQuerySet(void *device, void const *descriptor);
extern void wgpuQuerySetRelease(void *queries);
extern void *wgpuCommandEncoderFinish(void *encoder, void const *descriptor);
extern void wgpuCommandEncoderRelease(void *encoder);
extern void wgpuCommandBufferRelease(void *commands);
extern void wgpuComputePassEncoderSetPipeline(void *pass, void *pipeline);
extern void wgpuComputePassEncoderSetBindGroup(void *pass, uint32_t i, void *group, size_t n, uint32_t const *offsets);
extern void wgpuComputePassEncoderDispatchWorkgroups(void *pass, uint32_t x, uint32_t y, uint32_t z);
extern void wgpuComputePassEncoderEnd(void *pass);
extern void wgpuComputePassEncoderRelease(void *pass);
extern void wgpuQueueSubmit(void *queue, size_t n, void *const *commands);
extern void wgpuQueueOnSubmittedWorkDone(void *queue, status_callback cb, void *user);
extern void wgpuBufferMapAsync(void *buffer, uint32_t mode, size_t offset, size_t size, status_callback cb, void *user);

// keep_first records an error unless one is recorded already.
static void keep_first(int type, char const *msg, void *user) {
	gp_error *err = user;
	if (type == GP_NO_ERROR || err->type != GP_NO_ERROR) return;
	err->type = type;
	snprintf(err->msg, sizeof err->msg, "%s", msg ? msg : "");
}

static void on_lost(int reason, char const *msg, void *user) {
	gp_device *d = user;
	(void)reason;
	if (d->lost) return;
	d->lost = 1;
	snprintf(d->lost_msg, sizeof d->lost_msg, "%s", msg ? msg : "");
}

typedef struct { gp_device *device; gp_error *err; } request;

static void on_device(int status, void *device, char const *msg, void *user) {
	request *r = user;
	if (status == 0) r->device->device = device;
	else keep_first(GP_VALIDATION, msg, r->err);
}

static void on_done(int status, void *user) {
	(void)status;
	((gp_device *)user)->done++;
}

static void on_map(int status, void *user) { *(int *)user = status; }

// gp_instance exists because the bindings leave part of the descriptor uninitialised, which kills the process.
void *gp_instance(uint32_t backends) {
	instance_extras extras;
	memset(&extras, 0, sizeof extras);
	extras.chain.type = INSTANCE_EXTRAS;
	extras.backends = backends;
	chained const *descriptor = &extras.chain; // a descriptor's only field
	return wgpuCreateInstance(&descriptor);
}

static gp_limits choose(native_limits const *l) {
	gp_limits out = {
		.bindings = l->storage_buffers < l->bindings_per_group ? l->storage_buffers : l->bindings_per_group,
		.offset_alignment = l->storage_alignment, .workgroup_memory = l->workgroup_storage, .invocations = l->invocations,
		.size_x = l->size_x, .size_y = l->size_y, .size_z = l->size_z, .groups = l->groups,
		.binding_size = l->storage_binding_size, .buffer_size = l->buffer_size,
	};
	return out;
}

gp_limits gp_limits_of(void *adapter) {
	supported_limits has;
	memset(&has, 0, sizeof has);
	wgpuAdapterGetLimits(adapter, &has);
	return choose(&has.limits);
}

// gp_open asks for a device with all that the adapter offers. The library calls back before it returns.
gp_device *gp_open(void *adapter, char const *label, gp_limits *limits, gp_error *err) {
	gp_device *d = calloc(1, sizeof *d);
	if (!d) { keep_first(GP_OUT_OF_MEMORY, "host memory", err); return NULL; }
	supported_limits has;
	memset(&has, 0, sizeof has);
	wgpuAdapterGetLimits(adapter, &has);
	*limits = choose(&has.limits);
	limits_extras extras = {.chain = {NULL, LIMITS_EXTRAS}, .push_constant_size = 0, .non_sampler_bindings = UINT32_MAX};
	required_limits need = {.next = &extras.chain, .limits = has.limits};
	device_descriptor desc;
	memset(&desc, 0, sizeof desc);
	desc.label = label;
	desc.limits = &need;
	static int const timestamps = TIMESTAMP_QUERY;
	d->timestamps = (int)wgpuAdapterHasFeature(adapter, timestamps);
	desc.feature_count = d->timestamps ? 1 : 0;
	desc.features = &timestamps;
	desc.lost = on_lost;
	desc.lost_user = d;
	desc.uncaptured.callback = keep_first;
	desc.uncaptured.user = &d->uncaptured;
	request r = {d, err};
	wgpuAdapterRequestDevice(adapter, &desc, on_device, &r);
	if (!d->device) { free(d); return NULL; }
	d->queue = wgpuDeviceGetQueue(d->device);
	return d;
}

// gp_close needs an idle queue: releasing a device waits for it at most 5 s, and then kills the process.
void gp_close(gp_device *d) {
	wgpuQueueRelease(d->queue);
	wgpuDeviceRelease(d->device);
	free(d);
}

void gp_push(gp_device *d) {
	wgpuDevicePushErrorScope(d->device, FILTER_OUT_OF_MEMORY);
	wgpuDevicePushErrorScope(d->device, FILTER_VALIDATION);
}

void gp_pop(gp_device *d, gp_error *err) {
	wgpuDevicePopErrorScope(d->device, keep_first, err);
	wgpuDevicePopErrorScope(d->device, keep_first, err);
}

static void dispatch(void *pass, gp_command const *c) {
	wgpuComputePassEncoderSetPipeline(pass, c->pipeline);
	wgpuComputePassEncoderSetBindGroup(pass, 0, c->group, 0, NULL);
	wgpuComputePassEncoderDispatchWorkgroups(pass, c->x, c->y, c->z);
}

static void encode(void *encoder, gp_command const *c, size_t n) {
	void *pass = NULL;
	for (size_t i = 0; i < n; i++, c++) {
		if (c->pipeline) {
			if (!pass) pass = wgpuCommandEncoderBeginComputePass(encoder, NULL);
			dispatch(pass, c);
			continue;
		}
		if (pass) {
			wgpuComputePassEncoderEnd(pass);
			wgpuComputePassEncoderRelease(pass);
			pass = NULL;
		}
		wgpuCommandEncoderCopyBufferToBuffer(encoder, c->src, c->src_offset, c->dst, c->dst_offset, c->size);
	}
	if (pass) {
		wgpuComputePassEncoderEnd(pass);
		wgpuComputePassEncoderRelease(pass);
	}
}

// measured is a pass of one dispatch, or of none, that takes the time at its beginning and at its end.
static void measured(void *encoder, gp_timer const *timer, uint32_t at, gp_command const *c) {
	timestamp_writes writes = {timer->queries, at, at + 1};
	pass_descriptor descriptor = {.writes = &writes};
	void *pass = wgpuCommandEncoderBeginComputePass(encoder, &descriptor);
	if (c) dispatch(pass, c);
	wgpuComputePassEncoderEnd(pass);
	wgpuComputePassEncoderRelease(pass);
}

// encode_timed takes the time within passes, the only place where WebGPU promises it: a dispatch has a pass of its own,
// a copy lies between two empty ones. A dispatch takes GP_DISPATCH_STAMPS, a copy GP_COPY_STAMPS.
static void encode_timed(void *encoder, gp_command const *c, size_t n, gp_timer const *timer) {
	uint32_t at = 0;
	for (size_t i = 0; i < n; i++, c++) {
		if (c->pipeline) {
			measured(encoder, timer, at, c);
			at += GP_DISPATCH_STAMPS;
			continue;
		}
		measured(encoder, timer, at, NULL);
		wgpuCommandEncoderCopyBufferToBuffer(encoder, c->src, c->src_offset, c->dst, c->dst_offset, c->size);
		measured(encoder, timer, at + 2, NULL);
		at += GP_COPY_STAMPS;
	}
	if (n == 0) measured(encoder, timer, at, NULL), at += GP_DISPATCH_STAMPS;
	wgpuCommandEncoderResolveQuerySet(encoder, timer->queries, 0, at, timer->resolved, 0);
	wgpuCommandEncoderCopyBufferToBuffer(encoder, timer->resolved, 0, timer->staging, 0, 8 * (uint64_t)at);
}

// gp_submit encodes commands as one command buffer and submits it, unless encoding failed: submitting an invalid
// command buffer, or to a lost device, would kill the process. It returns 1 when the work was submitted. timer, if not
// NULL, measures the commands.
int gp_submit(gp_device *d, gp_command const *commands, size_t n, gp_timer const *timer, gp_error *err) {
	gp_push(d);
	void *encoder = wgpuDeviceCreateCommandEncoder(d->device, NULL);
	if (!d->lost && timer) encode_timed(encoder, commands, n, timer);
	else if (!d->lost) encode(encoder, commands, n);
	void *buffer = d->lost ? NULL : wgpuCommandEncoderFinish(encoder, NULL);
	gp_pop(d, err);
	int ok = buffer && !d->lost && err->type == GP_NO_ERROR;
	if (ok) {
		wgpuQueueSubmit(d->queue, 1, &buffer);
		wgpuQueueOnSubmittedWorkDone(d->queue, on_done, d);
		d->submitted++;
	}
	if (buffer) wgpuCommandBufferRelease(buffer);
	wgpuCommandEncoderRelease(encoder);
	return ok;
}

// gp_queries makes room for timestamps on a device that has them.
void *gp_queries(gp_device *d, uint32_t count, gp_error *err) {
	query_set_descriptor desc = {.type = TIMESTAMPS, .count = count};
	gp_push(d);
	void *queries = wgpuDeviceCreateQuerySet(d->device, &desc);
	gp_pop(d, err);
	return queries;
}

void gp_free_queries(void *queries) { wgpuQuerySetRelease(queries); }

// gp_map asks for the first size bytes; *status, which must outlive the request, changes within a later gp_poll.
void gp_map(gp_device *d, void *buffer, uint32_t mode, size_t size, int *status, gp_error *err) {
	*status = GP_MAP_PENDING;
	gp_push(d);
	wgpuBufferMapAsync(buffer, mode, 0, size, on_map, status);
	gp_pop(d, err);
}

// gp_poll never waits: a waiting poll gives up after 5 s and then frees what is in use.
int gp_poll(gp_device *d) { return (int)wgpuDevicePoll(d->device, 0, NULL); }
