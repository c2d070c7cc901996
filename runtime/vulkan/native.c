//go:build linux

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
typedef struct { head head; uint32_t on; } pipeline_robustness_features;
typedef struct { head head; uint32_t buffers, uniforms, vertices, images; } pipeline_robustness;
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
typedef struct { head head; uint32_t flags, family, count; float const *priorities; } queue_info;
typedef struct {
	head head;
	uint32_t flags, queue_count; queue_info const *queues;
	uint32_t layer_count; char const *const *layers;
	uint32_t extension_count; char const *const *extensions;
	void const *features;
} device_info;
typedef struct { uint32_t binding, type, count, stages; void const *samplers; } layout_binding;
typedef struct { head head; uint32_t flags, count; layout_binding const *bindings; } set_layout_info;
typedef struct { head head; uint32_t flags, sets; uint64_t const *layouts; uint32_t ranges; void const *push; } pipeline_layout_info;
typedef struct { uint32_t type, count; } pool_size;
typedef struct { head head; uint32_t flags, sets, sizes_count; pool_size const *sizes; } descriptor_pool_info;
typedef struct { head head; uint64_t pool; uint32_t count; uint64_t const *layouts; } set_info;
typedef struct { head head; uint32_t flags; size_t size; uint32_t const *code; } module_info;
typedef struct { head head; uint32_t flags, stage; uint64_t module; char const *name; void const *constants; } stage_info;
typedef struct { head head; uint32_t size; } stage_subgroup_size;
typedef struct { head head; uint32_t flags; stage_info stage; uint64_t layout, base; int32_t base_index; } pipeline_info;

enum { // VkStructureType
	T_QUEUE = 2, T_DEVICE = 3, T_SUBMIT = 4, T_SEMAPHORE = 9, T_MODULE = 16, T_STAGE = 18, T_PIPELINE = 29, T_PIPELINE_LAYOUT = 30,
	T_SET_LAYOUT = 32, T_DESCRIPTOR_POOL = 33, T_SET = 34, T_WRITE_SET = 35, T_POOL = 39, T_COMMANDS = 40, T_BEGIN = 42, T_MEMORY_BARRIER = 46,
	T_FEATURES2 = 1000059000, T_PROPERTIES2 = 1000059001, T_PIPELINE_ROBUSTNESS = 1000068000, T_PIPELINE_ROBUSTNESS_FEATURES = 1000068001, T_FLOAT16 = 1000082000, T_STORAGE16 = 1000083000,
	T_SUBGROUP = 1000094000, T_MAINTENANCE3 = 1000168000, T_DRIVER = 1000196000, T_TIMELINE = 1000207000,
	T_SEMAPHORE_KIND = 1000207002, T_TIMELINE_SUBMIT = 1000207003, T_WAIT = 1000207004, T_SUBGROUP_SIZE = 1000225000, T_STAGE_SUBGROUP_SIZE = 1000225001,
	T_ROBUSTNESS2 = 1000286000, T_ZERO_WORKGROUP = 1000325000, T_MAINTENANCE4 = 1000413001, T_SHAPE = 1000506001,
};
enum { OUT_OF_HOST_MEMORY = -1, EXTENSION_NOT_PRESENT = -7 };
enum { STORAGE_BUFFER = 7, COMPUTE_SHADER = 0x20, FULL_SUBGROUPS = 2, NOT_ROBUST = 1, MOST_BINDINGS = 64 };
enum { COMPUTE = 0x800, TRANSFER = 0x1000, HOST = 0x4000 }; // stages
enum { SHADER_READ = 0x20, SHADER_WRITE = 0x40, TRANSFER_READ = 0x800, TRANSFER_WRITE = 0x1000, HOST_READ = 0x2000 };

typedef int create_function(void *, void const *, void const *, uint64_t *);
typedef void destroy_function(void *, uint64_t, void const *);

struct gv_device {
	void *device, *queue;
	uint64_t pool, timeline;
	create_function *create_semaphore, *create_pool;
	destroy_function *destroy_semaphore, *destroy_pool;
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
	create_function *create_set_layout, *create_pipeline_layout, *create_descriptor_pool, *create_module;
	destroy_function *destroy_set_layout, *destroy_pipeline_layout, *destroy_descriptor_pool, *destroy_module, *destroy_pipeline;
	int (*allocate_sets)(void *, void const *, uint64_t *);
	int (*create_pipelines)(void *, uint64_t, uint32_t, void const *, void const *, uint64_t *);
};

// gv_load opens the Vulkan loader and returns its vkGetInstanceProcAddr. It stays open: drivers do not like to be
// unloaded.
void *gv_load(char const *library) {
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	return handle ? dlsym(handle, "vkGetInstanceProcAddr") : NULL;
}

static void link_after(void *first, void *added) {
	((head *)added)->next = ((head *)first)->next;
	((head *)first)->next = added;
}

static void features_of(get_function get, void *instance, void *physical, uint32_t version, int has_robustness2, int has_pipeline_robustness, gv_abilities *out) {
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
	pipeline_robustness_features by_pipeline = {.head.type = T_PIPELINE_ROBUSTNESS_FEATURES};
	if (has_robustness2) link_after(&f, &robustness2);
	if (has_pipeline_robustness) link_after(&f, &by_pipeline);
	if (gv_at_least_13(version)) link_after(&f, &zero_workgroup);
	query(physical, &f);
	out->timeline = timeline.on;
	out->float16 = float16.float16;
	out->storage16 = storage16.storage16;
	out->robustness2 = robustness2.buffers;
	out->pipeline_robustness = by_pipeline.on;
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
void gv_abilities_of(void *get_, void *instance, void *physical, uint32_t version, int has_robustness2, int has_pipeline_robustness, int has_sizes, int has_shapes,
	gv_abilities *out) {
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
	if (has_sizes || gv_at_least_13(version)) link_after(p, &sizes);
	if (gv_at_least_13(version)) link_after(p, &m4);
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
	features_of(get, instance, physical, version, has_robustness2, has_pipeline_robustness, out);
	if (has_shapes) shapes_of(get, instance, physical, out);
}

int gv_has_extension(void *get_, void *instance, void *physical, char const *name) {
	typedef struct { char name[256]; uint32_t version; } extension;
	int (*list)(void *, char const *, uint32_t *, extension *) =
		(int (*)(void *, char const *, uint32_t *, extension *))((get_function)get_)(instance, "vkEnumerateDeviceExtensionProperties");
	uint32_t n = 0;
	if (!list || list(physical, NULL, &n, NULL) < 0 || n == 0) return 0;
	extension *all = calloc(n, sizeof *all);
	int found = 0;
	if (all && list(physical, NULL, &n, all) >= 0)
		for (uint32_t i = 0; i < n; i++) found |= !strncmp(all[i].name, name, sizeof all[i].name);
	free(all);
	return found;
}

// gv_compute_family returns the first queue family for compute, or -1.
int gv_compute_family(void *get_, void *instance, void *physical) {
	enum { MOST = 32, COMPUTE_BIT = 2 };
	typedef struct { uint32_t flags, queues, timestamps, width, height, depth; } family;
	void (*list)(void *, uint32_t *, family *) =
		(void (*)(void *, uint32_t *, family *))((get_function)get_)(instance, "vkGetPhysicalDeviceQueueFamilyProperties");
	if (!list) return -1;
	family all[MOST];
	uint32_t n = 0;
	list(physical, &n, NULL);
	if (n > MOST) n = MOST;
	list(physical, &n, all);
	for (uint32_t i = 0; i < n; i++)
		if (all[i].flags & COMPUTE_BIT && all[i].queues > 0) return (int)i;
	return -1;
}

int gv_new_device(void *get_, void *instance, void *physical, uint32_t family, int robustness2, int pipeline_robustness, int zero_workgroup, int import,
	gv_cooperative const *c, void **device) {
	int (*create)(void *, void const *, void const *, void **) =
		(int (*)(void *, void const *, void const *, void **))((get_function)get_)(instance, "vkCreateDevice");
	if (!create) return EXTENSION_NOT_PRESENT;
	features2 features = {.head.type = T_FEATURES2, .robust_buffers = 1};
	timeline_features timeline = {.head.type = T_TIMELINE, .on = 1};
	robustness2_features robust = {.head.type = T_ROBUSTNESS2, .buffers = 1};
	pipeline_robustness_features by_pipeline = {.head.type = T_PIPELINE_ROBUSTNESS_FEATURES, .on = 1};
	zero_workgroup_features zeros = {.head.type = T_ZERO_WORKGROUP, .on = 1};
	link_after(&features, &timeline);
	if (robustness2) link_after(&features, &robust);
	if (pipeline_robustness) link_after(&features, &by_pipeline);
	if (zero_workgroup) link_after(&features, &zeros);
	float priority = 1;
	queue_info queue = {.head.type = T_QUEUE, .family = family, .count = 1, .priorities = &priority};
	char const *extensions[3 + GV_COOPERATIVE_EXTENSIONS];
	uint32_t count = 0;
	if (robustness2) extensions[count++] = "VK_EXT_robustness2";
	if (pipeline_robustness) extensions[count++] = "VK_EXT_pipeline_robustness";
	if (import) extensions[count++] = "VK_EXT_external_memory_host";
	gv_cooperative_features room;
	gv_enable_cooperative(c, &room, &features, extensions, &count);
	device_info info = {.head = {T_DEVICE, &features}, .queue_count = 1, .queues = &queue, .extension_count = count, .extensions = extensions};
	return create(physical, &info, NULL, device);
}

static int complete(gv_device const *d) {
	return d->create_semaphore && d->destroy_semaphore && d->create_pool && d->destroy_pool && d->allocate_commands && d->free_commands &&
		d->begin && d->end && d->bind_pipeline && d->bind_sets && d->dispatch && d->copy && d->fill && d->barrier && d->submit && d->wait &&
		d->value && d->update_sets && d->create_set_layout && d->create_pipeline_layout && d->create_descriptor_pool && d->create_module &&
		d->destroy_set_layout && d->destroy_pipeline_layout && d->destroy_descriptor_pool && d->destroy_module && d->destroy_pipeline &&
		d->allocate_sets && d->create_pipelines;
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
	FIND(create_set_layout, "vkCreateDescriptorSetLayout");
	FIND(create_pipeline_layout, "vkCreatePipelineLayout");
	FIND(create_descriptor_pool, "vkCreateDescriptorPool");
	FIND(create_module, "vkCreateShaderModule");
	FIND(destroy_set_layout, "vkDestroyDescriptorSetLayout");
	FIND(destroy_pipeline_layout, "vkDestroyPipelineLayout");
	FIND(destroy_descriptor_pool, "vkDestroyDescriptorPool");
	FIND(destroy_module, "vkDestroyShaderModule");
	FIND(destroy_pipeline, "vkDestroyPipeline");
	FIND(allocate_sets, "vkAllocateDescriptorSets");
	FIND(create_pipelines, "vkCreateComputePipelines");
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

// gv_begin begins commands that follow all that is submitted before them. again: they may be submitted again while they
// are under way.
int gv_begin(gv_device *d, void *commands, int again) {
	begin_info begin = {.head.type = T_BEGIN, .flags = again ? 4 : 1};
	int r = d->begin(commands, &begin);
	if (r == 0) wait_for(d, commands);
	return r;
}

// gv_put records one command; bound is what the ones before it have bound, zeros at first.
void gv_put(gv_device *d, void *commands, gv_command const *c, gv_bound *bound) {
	if (c->barrier) wait_for(d, commands);
	if (c->pipeline) {
		if (c->pipeline != bound->pipeline) d->bind_pipeline(commands, 1, c->pipeline);
		if (c->set && c->set != bound->set) d->bind_sets(commands, 1, c->layout, 0, 1, &c->set, 0, NULL);
		*bound = (gv_bound){c->pipeline, c->set};
		d->dispatch(commands, c->x, c->y, c->z);
	} else if (c->src) {
		buffer_copy region = {c->src_offset, c->dst_offset, c->size};
		d->copy(commands, c->src, c->dst, 1, &region);
	} else {
		d->fill(commands, c->dst, c->dst_offset, c->size, 0);
	}
}

int gv_end(gv_device *d, void *commands) { return d->end(commands); }

// gv_record records n commands, which follow all that is submitted before them. again: they may be submitted again
// while they are under way; else the host will read what was copied.
int gv_record(gv_device *d, void *commands, gv_command const *c, size_t n, int again) {
	int r = gv_begin(d, commands, again);
	if (r) return r;
	gv_bound bound = {0, 0};
	for (size_t i = 0; i < n; i++) gv_put(d, commands, c + i, &bound);
	if (!again) {
		memory_barrier b = {.head.type = T_MEMORY_BARRIER, .source = TRANSFER_WRITE, .destination = HOST_READ};
		d->barrier(commands, TRANSFER, HOST, 0, 1, &b, 0, NULL, 0, NULL);
	}
	return gv_end(d, commands);
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
	enum { MOST = 64 };
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

// gv_new_layout makes the layouts of a set of so many storage buffers, 64 at most, and of pipelines with one such set.
int gv_new_layout(gv_device *d, uint32_t bindings, uint64_t *set, uint64_t *pipeline) {
	layout_binding list[MOST_BINDINGS];
	memset(list, 0, sizeof list);
	for (uint32_t i = 0; i < bindings; i++)
		list[i] = (layout_binding){.binding = i, .type = STORAGE_BUFFER, .count = 1, .stages = COMPUTE_SHADER};
	set_layout_info info = {.head.type = T_SET_LAYOUT, .count = bindings, .bindings = list};
	int r = d->create_set_layout(d->device, &info, NULL, set);
	if (r) return r;
	pipeline_layout_info of = {.head.type = T_PIPELINE_LAYOUT, .sets = 1, .layouts = set};
	r = d->create_pipeline_layout(d->device, &of, NULL, pipeline);
	if (r) d->destroy_set_layout(d->device, *set, NULL);
	return r;
}

void gv_free_layout(gv_device *d, uint64_t set, uint64_t pipeline) {
	d->destroy_pipeline_layout(d->device, pipeline, NULL);
	d->destroy_set_layout(d->device, set, NULL);
}

int gv_new_pool(gv_device *d, uint32_t sets, uint32_t descriptors, uint64_t *pool) {
	pool_size size = {STORAGE_BUFFER, descriptors};
	descriptor_pool_info info = {.head.type = T_DESCRIPTOR_POOL, .sets = sets, .sizes_count = 1, .sizes = &size};
	return d->create_descriptor_pool(d->device, &info, NULL, pool);
}

void gv_free_pool(gv_device *d, uint64_t pool) { d->destroy_descriptor_pool(d->device, pool, NULL); }

int gv_new_set(gv_device *d, uint64_t pool, uint64_t layout, uint64_t *set) {
	set_info info = {.head.type = T_SET, .pool = pool, .count = 1, .layouts = &layout};
	return d->allocate_sets(d->device, &info, set);
}

// gv_new_pipeline compiles SPIR-V of size bytes. Its subgroups are of the size given and all full; 0 leaves both to the
// driver. Code that is trusted has its indices not checked.
int gv_new_pipeline(gv_device *d, uint64_t cache, uint64_t layout, uint32_t const *code, size_t size, uint32_t subgroup, int trusted, uint64_t *pipeline) {
	module_info source = {.head.type = T_MODULE, .size = size, .code = code};
	uint64_t module = 0;
	int r = d->create_module(d->device, &source, NULL, &module);
	if (r) return r;
	pipeline_info info = {.head.type = T_PIPELINE, .layout = layout,
		.stage = {.head.type = T_STAGE, .stage = COMPUTE_SHADER, .module = module, .name = "main"}};
	stage_subgroup_size of_subgroups = {.head.type = T_STAGE_SUBGROUP_SIZE, .size = subgroup};
	if (subgroup) {
		info.stage.head.next = &of_subgroups;
		info.stage.flags = FULL_SUBGROUPS;
	}
	pipeline_robustness none = {.head.type = T_PIPELINE_ROBUSTNESS, .buffers = NOT_ROBUST};
	if (trusted) link_after(&info, &none);
	r = d->create_pipelines(d->device, cache, 1, &info, NULL, pipeline);
	d->destroy_module(d->device, module, NULL);
	return r;
}

void gv_free_pipeline(gv_device *d, uint64_t pipeline) { d->destroy_pipeline(d->device, pipeline, NULL); }
