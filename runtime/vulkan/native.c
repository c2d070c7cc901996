#ifdef __linux__

#include "native.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
typedef function (*get_function)(void *object, char const *name);

typedef struct { uint32_t type; void *next; } head;
typedef struct { head head; uint64_t properties[128]; } properties2; // larger than VkPhysicalDeviceProperties
typedef struct { head head; uint32_t id; char name[256], info[256]; uint8_t conformance[4]; } driver_properties;
typedef struct { head head; uint32_t size, stages, operations, quad; } subgroup_properties;
typedef struct { head head; uint32_t min, max, most_subgroups, stages; } subgroup_size_properties;
typedef struct { head head; uint32_t set_descriptors; uint64_t allocation_size; } maintenance3_properties;
typedef struct { head head; uint64_t buffer_size; } maintenance4_properties;
typedef struct { head head; uint32_t robust_buffers, others[54]; } features2;
typedef struct { head head; uint32_t storage16, uniform16, push16, io16; } storage16_features;
typedef struct { head head; uint32_t float16, int8; } float16_features;
typedef struct { head head; uint32_t on; } timeline_features;
typedef struct { head head; uint32_t buffers, images, null_descriptor; } robustness2_features;
typedef struct { head head; uint32_t on; } zero_workgroup_features;
typedef struct { head head; uint32_t m, n, k, a, b, c, result, saturating, scope; } shape_properties;
typedef struct { head head; uint32_t flags; } create_info;
typedef struct { head head; uint32_t flags, family; } pool_info;
typedef struct { head head; uint64_t pool; uint32_t level, count; } commands_info;
typedef struct { head head; uint32_t flags; void const *inheritance; } begin_info;
typedef struct { head head; uint32_t source, destination; } memory_barrier;
typedef struct { head head; uint32_t kind; uint64_t initial; } semaphore_kind;
typedef struct { head head; uint32_t waits; uint64_t const *wait_values; uint32_t signals; uint64_t const *signal_values; } timeline_submit;
typedef struct {
	head head;
	uint32_t waits; uint64_t const *wait; uint32_t const *stages;
	uint32_t commands_count; void *const *commands;
	uint32_t signals; uint64_t const *signal;
} submit_info;
typedef struct { head head; uint32_t flags, count; uint64_t const *semaphores, *values; } wait_info;
typedef struct { uint64_t buffer, offset, range; } buffer_info;
typedef struct {
	head head;
	uint64_t set; uint32_t binding, element, count, type;
	void const *images; buffer_info const *buffers; void const *views;
} write_set;
typedef struct { uint64_t src, dst, size; } buffer_copy;

enum { // VkStructureType
	T_SUBMIT = 4, T_SEMAPHORE = 9, T_WRITE_SET = 35, T_POOL = 39, T_COMMANDS = 40, T_BEGIN = 42, T_MEMORY_BARRIER = 46,
	T_FEATURES2 = 1000059000, T_PROPERTIES2 = 1000059001, T_FLOAT16 = 1000082000, T_STORAGE16 = 1000083000,
	T_SUBGROUP = 1000094000, T_MAINTENANCE3 = 1000168000, T_DRIVER = 1000196000, T_TIMELINE = 1000207000,
	T_SEMAPHORE_KIND = 1000207002, T_TIMELINE_SUBMIT = 1000207003, T_WAIT = 1000207004, T_SUBGROUP_SIZE = 1000225000,
	T_ROBUSTNESS2 = 1000286000, T_ZERO_WORKGROUP = 1000325000, T_MAINTENANCE4 = 1000413001, T_SHAPE = 1000506001,
};
enum { OUT_OF_HOST_MEMORY = -1, EXTENSION_NOT_PRESENT = -7 };
enum { COMPUTE = 0x800, TRANSFER = 0x1000, HOST = 0x4000 }; // stages
enum { SHADER_READ = 0x20, SHADER_WRITE = 0x40, TRANSFER_READ = 0x800, TRANSFER_WRITE = 0x1000, HOST_READ = 0x2000 };

struct gv_features {
	features2 all;
	timeline_features timeline;
	robustness2_features robustness2;
	zero_workgroup_features zero_workgroup;
};

struct gv_device {
	void *device, *queue;
	uint64_t pool, timeline;
	int (*create_semaphore)(void *, void const *, void const *, uint64_t *);
	void (*destroy_semaphore)(void *, uint64_t, void const *);
	int (*create_pool)(void *, void const *, void const *, uint64_t *);
	void (*destroy_pool)(void *, uint64_t, void const *);
	int (*allocate_commands)(void *, void const *, void **);
	void (*free_commands)(void *, uint64_t, uint32_t, void *const *);
	int (*begin)(void *, void const *);
	int (*end)(void *);
	void (*bind_pipeline)(void *, int, uint64_t);
	void (*bind_sets)(void *, int, uint64_t, uint32_t, uint32_t, uint64_t const *, uint32_t, uint32_t const *);
	void (*dispatch)(void *, uint32_t, uint32_t, uint32_t);
	void (*copy)(void *, uint64_t, uint64_t, uint32_t, void const *);
	void (*fill)(void *, uint64_t, uint64_t, uint64_t, uint32_t);
	void (*barrier)(void *, uint32_t, uint32_t, uint32_t, uint32_t, void const *, uint32_t, void const *, uint32_t, void const *);
	int (*submit)(void *, uint32_t, void const *, uint64_t);
	int (*wait)(void *, void const *, uint64_t);
	int (*value)(void *, uint64_t, uint64_t *);
	void (*update_sets)(void *, uint32_t, void const *, uint32_t, void const *);
};

// gv_load opens the Vulkan loader and returns its vkGetInstanceProcAddr. It stays open: drivers do not like to be unloaded.
void *gv_load(char const *library) {
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	return handle ? dlsym(handle, "vkGetInstanceProcAddr") : NULL;
}

static void link_after(void *first, void *added) {
	((head *)added)->next = ((head *)first)->next;
	((head *)first)->next = added;
}

static int at_least_13(uint32_t version) { return version >= (1u << 22 | 3u << 12); }

static void features_of(get_function get, void *instance, void *physical, uint32_t version, int has_robustness2, gv_abilities *out) {
	void (*query)(void *, void *) = (void (*)(void *, void *))get(instance, "vkGetPhysicalDeviceFeatures2");
	if (!query) return;
	features2 f = {.head.type = T_FEATURES2};
	timeline_features timeline = {.head.type = T_TIMELINE};
	float16_features float16 = {.head.type = T_FLOAT16};
	storage16_features storage16 = {.head.type = T_STORAGE16};
	robustness2_features robustness2 = {.head.type = T_ROBUSTNESS2};
	link_after(&f, &timeline);
	link_after(&f, &float16);
	link_after(&f, &storage16);
	zero_workgroup_features zero_workgroup = {.head.type = T_ZERO_WORKGROUP};
	if (has_robustness2) link_after(&f, &robustness2);
	if (at_least_13(version)) link_after(&f, &zero_workgroup);
	query(physical, &f);
	out->timeline = timeline.on;
	out->float16 = float16.float16;
	out->storage16 = storage16.storage16;
	out->robustness2 = robustness2.buffers;
	out->zero_workgroup = zero_workgroup.on;
}

static void shapes_of(get_function get, void *instance, void *physical, gv_abilities *out) {
	int (*query)(void *, uint32_t *, void *) =
		(int (*)(void *, uint32_t *, void *))get(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
	if (!query) return;
	shape_properties shapes[GV_MOST_SHAPES];
	memset(shapes, 0, sizeof shapes);
	for (int i = 0; i < GV_MOST_SHAPES; i++) shapes[i].head.type = T_SHAPE;
	uint32_t n = GV_MOST_SHAPES;
	if (query(physical, &n, shapes) < 0) return;
	out->shape_count = n;
	for (uint32_t i = 0; i < n; i++) {
		shape_properties const *s = &shapes[i];
		out->shapes[i] = (gv_shape){s->m, s->n, s->k, s->a, s->b, s->c, s->result, s->saturating, s->scope};
	}
}

// gv_abilities_of asks a physical device of at least Vulkan 1.2.
void gv_abilities_of(void *get_, void *instance, void *physical, uint32_t version, int has_robustness2, int has_shapes, gv_abilities *out) {
	get_function get = (get_function)get_;
	memset(out, 0, sizeof *out);
	void (*query)(void *, void *) = (void (*)(void *, void *))get(instance, "vkGetPhysicalDeviceProperties2");
	if (!query) return;
	static properties2 const none;
	properties2 *p = malloc(sizeof *p);
	if (!p) return;
	*p = none;
	p->head.type = T_PROPERTIES2;
	driver_properties driver = {.head.type = T_DRIVER};
	subgroup_properties subgroup = {.head.type = T_SUBGROUP};
	subgroup_size_properties sizes = {.head.type = T_SUBGROUP_SIZE};
	maintenance3_properties m3 = {.head.type = T_MAINTENANCE3};
	maintenance4_properties m4 = {.head.type = T_MAINTENANCE4};
	link_after(p, &driver);
	link_after(p, &subgroup);
	link_after(p, &m3);
	if (at_least_13(version)) {
		link_after(p, &sizes);
		link_after(p, &m4);
	}
	query(physical, p);
	free(p);
	memcpy(out->driver_name, driver.name, sizeof out->driver_name - 1);
	memcpy(out->driver_info, driver.info, sizeof out->driver_info - 1);
	out->subgroup_size = subgroup.size;
	out->subgroup_operations = subgroup.operations;
	out->subgroup_min = sizes.min ? sizes.min : subgroup.size;
	out->subgroup_max = sizes.max ? sizes.max : subgroup.size;
	out->allocation_size = m3.allocation_size;
	out->buffer_size = m4.buffer_size;
	features_of(get, instance, physical, version, has_robustness2, out);
	if (has_shapes) shapes_of(get, instance, physical, out);
}

// gv_features is what a device is made with, a chain for VkDeviceCreateInfo: the caller frees it.
gv_features *gv_new_features(int robustness2, int zero_workgroup) {
	gv_features *f = calloc(1, sizeof *f);
	if (!f) return NULL;
	f->all = (features2){.head = {T_FEATURES2, &f->timeline}, .robust_buffers = 1};
	f->timeline = (timeline_features){.head.type = T_TIMELINE, .on = 1};
	f->robustness2 = (robustness2_features){.head.type = T_ROBUSTNESS2, .buffers = 1};
	f->zero_workgroup = (zero_workgroup_features){.head.type = T_ZERO_WORKGROUP, .on = 1};
	if (robustness2) link_after(&f->all, &f->robustness2);
	if (zero_workgroup) link_after(&f->all, &f->zero_workgroup);
	return f;
}

static int complete(gv_device const *d) {
	return d->create_semaphore && d->destroy_semaphore && d->create_pool && d->destroy_pool && d->allocate_commands && d->free_commands &&
		d->begin && d->end && d->bind_pipeline && d->bind_sets && d->dispatch && d->copy && d->fill && d->barrier && d->submit && d->wait &&
		d->value && d->update_sets;
}

static int prepare(gv_device *d, uint32_t family) {
	semaphore_kind kind = {.head.type = T_SEMAPHORE_KIND, .kind = 1}; // a timeline, from 0
	create_info semaphore = {.head = {T_SEMAPHORE, &kind}};
	int r = d->create_semaphore(d->device, &semaphore, NULL, &d->timeline);
	if (r) return r;
	pool_info pool = {.head.type = T_POOL, .flags = 2, .family = family}; // its buffers can be recorded again one by one
	return d->create_pool(d->device, &pool, NULL, &d->pool);
}

gv_device *gv_open(void *get_, void *instance, void *device, void *queue, uint32_t family, int *result) {
	get_function get = (get_function)((get_function)get_)(instance, "vkGetDeviceProcAddr");
	gv_device *d = calloc(1, sizeof *d);
	if (!d) { *result = OUT_OF_HOST_MEMORY; return NULL; }
	d->device = device;
	d->queue = queue;
#define FIND(field, name) *(function *)&d->field = get(device, name)
	FIND(create_semaphore, "vkCreateSemaphore");
	FIND(destroy_semaphore, "vkDestroySemaphore");
	FIND(create_pool, "vkCreateCommandPool");
	FIND(destroy_pool, "vkDestroyCommandPool");
	FIND(allocate_commands, "vkAllocateCommandBuffers");
	FIND(free_commands, "vkFreeCommandBuffers");
	FIND(begin, "vkBeginCommandBuffer");
	FIND(end, "vkEndCommandBuffer");
	FIND(bind_pipeline, "vkCmdBindPipeline");
	FIND(bind_sets, "vkCmdBindDescriptorSets");
	FIND(dispatch, "vkCmdDispatch");
	FIND(copy, "vkCmdCopyBuffer");
	FIND(fill, "vkCmdFillBuffer");
	FIND(barrier, "vkCmdPipelineBarrier");
	FIND(submit, "vkQueueSubmit");
	FIND(wait, "vkWaitSemaphores");
	FIND(value, "vkGetSemaphoreCounterValue");
	FIND(update_sets, "vkUpdateDescriptorSets");
#undef FIND
	*result = complete(d) ? prepare(d, family) : EXTENSION_NOT_PRESENT;
	if (*result == 0) return d;
	if (complete(d)) gv_close(d);
	else free(d);
	return NULL;
}

// gv_close needs an idle queue.
void gv_close(gv_device *d) {
	if (d->pool) d->destroy_pool(d->device, d->pool, NULL);
	if (d->timeline) d->destroy_semaphore(d->device, d->timeline, NULL);
	free(d);
}

int gv_new_commands(gv_device *d, void **commands) {
	commands_info info = {.head.type = T_COMMANDS, .pool = d->pool, .count = 1};
	return d->allocate_commands(d->device, &info, commands);
}

void gv_free_commands(gv_device *d, void *commands) { d->free_commands(d->device, d->pool, 1, &commands); }

// wait_for makes what follows wait for what was submitted or recorded before.
static void wait_for(gv_device *d, void *commands) {
	memory_barrier b = {.head.type = T_MEMORY_BARRIER, .source = SHADER_WRITE | TRANSFER_WRITE,
		.destination = SHADER_READ | SHADER_WRITE | TRANSFER_READ | TRANSFER_WRITE};
	d->barrier(commands, COMPUTE | TRANSFER, COMPUTE | TRANSFER, 0, 1, &b, 0, NULL, 0, NULL);
}

// gv_record records n commands, which follow all that is submitted before them. again: they may be submitted again while they
// are under way; else the host will read what was copied.
int gv_record(gv_device *d, void *commands, gv_command const *c, size_t n, int again) {
	begin_info begin = {.head.type = T_BEGIN, .flags = again ? 4 : 1};
	int r = d->begin(commands, &begin);
	if (r) return r;
	wait_for(d, commands);
	uint64_t pipeline = 0, set = 0;
	for (size_t i = 0; i < n; i++, c++) {
		if (c->barrier) wait_for(d, commands);
		if (c->pipeline) {
			if (c->pipeline != pipeline) d->bind_pipeline(commands, 1, c->pipeline);
			if (c->set && c->set != set) d->bind_sets(commands, 1, c->layout, 0, 1, &c->set, 0, NULL);
			pipeline = c->pipeline;
			set = c->set;
			d->dispatch(commands, c->x, c->y, c->z);
		} else if (c->src) {
			buffer_copy region = {c->src_offset, c->dst_offset, c->size};
			d->copy(commands, c->src, c->dst, 1, &region);
		} else {
			d->fill(commands, c->dst, c->dst_offset, c->size, 0);
		}
	}
	if (!again) {
		memory_barrier b = {.head.type = T_MEMORY_BARRIER, .source = TRANSFER_WRITE, .destination = HOST_READ};
		d->barrier(commands, TRANSFER, HOST, 0, 1, &b, 0, NULL, 0, NULL);
	}
	return d->end(commands);
}

int gv_submit(gv_device *d, void *const *commands, size_t n, uint64_t value) {
	timeline_submit timeline = {.head.type = T_TIMELINE_SUBMIT, .signals = 1, .signal_values = &value};
	submit_info info = {.head = {T_SUBMIT, &timeline}, .commands_count = (uint32_t)n, .commands = commands,
		.signals = 1, .signal = &d->timeline};
	return d->submit(d->queue, 1, &info, 0);
}

// gv_wait returns 0 once submission value is done, and 2 when the time is up.
int gv_wait(gv_device *d, uint64_t value, uint64_t nanoseconds) {
	wait_info info = {.head.type = T_WAIT, .count = 1, .semaphores = &d->timeline, .values = &value};
	return d->wait(d->device, &info, nanoseconds);
}

int gv_done(gv_device *d, uint64_t *value) { return d->value(d->device, d->timeline, value); }

void gv_bind(gv_device *d, gv_binding const *b, size_t n) {
	enum { MOST = 64, STORAGE_BUFFER = 7 };
	write_set writes[MOST];
	buffer_info buffers[MOST];
	while (n > 0) {
		uint32_t part = n < MOST ? (uint32_t)n : MOST;
		for (uint32_t i = 0; i < part; i++) {
			buffers[i] = (buffer_info){b[i].buffer, b[i].offset, b[i].size};
			writes[i] = (write_set){.head.type = T_WRITE_SET, .set = b[i].set, .binding = b[i].binding, .count = 1, .type = STORAGE_BUFFER,
				.buffers = &buffers[i]};
		}
		d->update_sets(d->device, part, writes, 0, NULL);
		b += part;
		n -= part;
	}
}

#endif
