//go:build linux

#include "timer.h"

#include <stdlib.h>

typedef void (*function)(void);
typedef function (*get_function)(void *object, char const *name);
typedef struct { uint32_t type; void *next; uint32_t flags; int kind; uint32_t count, statistics; } queries_info;

enum { T_QUERIES = 11, TIMESTAMPS = 2 };                    // VkStructureType, VkQueryType
enum { BOTTOM_OF_PIPE = 0x2000, RESULT_64 = 1, WAIT = 2 }; // VkPipelineStageFlagBits, VkQueryResultFlagBits

struct gv_timer {
	void *device;
	int (*create)(void *, void const *, void const *, uint64_t *);
	void (*destroy)(void *, uint64_t, void const *);
	void (*reset)(void *, uint64_t, uint32_t, uint32_t);
	void (*write)(void *, int, uint64_t, uint32_t);
	int (*results)(void *, uint64_t, uint32_t, uint32_t, size_t, void *, uint64_t, uint32_t);
};

// gv_timestamp_bits returns how many bits of a timestamp a queue family counts with; 0: it has no timestamps.
uint32_t gv_timestamp_bits(void *get_, void *instance, void *physical, uint32_t family) {
	enum { MOST = 32 };
	typedef struct { uint32_t flags, queues, timestamp_bits, width, height, depth; } family_properties;
	void (*list)(void *, uint32_t *, family_properties *) =
		(void (*)(void *, uint32_t *, family_properties *))((get_function)get_)(instance, "vkGetPhysicalDeviceQueueFamilyProperties");
	if (!list) return 0;
	family_properties all[MOST];
	uint32_t n = MOST;
	list(physical, &n, all);
	return family < n ? all[family].timestamp_bits : 0;
}

// gv_new_timer returns NULL where a function is missing.
gv_timer *gv_new_timer(void *get_, void *instance, void *device) {
	get_function get = (get_function)((get_function)get_)(instance, "vkGetDeviceProcAddr");
	gv_timer *t = calloc(1, sizeof *t);
	if (!t) return NULL;
	t->device = device;
#define FIND(field, name) *(function *)&t->field = get(device, name)
	FIND(create, "vkCreateQueryPool");
	FIND(destroy, "vkDestroyQueryPool");
	FIND(reset, "vkCmdResetQueryPool");
	FIND(write, "vkCmdWriteTimestamp");
	FIND(results, "vkGetQueryPoolResults");
#undef FIND
	if (t->create && t->destroy && t->reset && t->write && t->results) return t;
	free(t);
	return NULL;
}

void gv_free_timer(gv_timer *t) { free(t); }

int gv_new_queries(gv_timer *t, uint32_t n, uint64_t *queries) {
	queries_info info = {.type = T_QUERIES, .kind = TIMESTAMPS, .count = n};
	return t->create(t->device, &info, NULL, queries);
}

void gv_free_queries(gv_timer *t, uint64_t queries) { t->destroy(t->device, queries, NULL); }

// gv_record_timed records n commands, each of which waits for the one before. Query i is when command i may begin,
// since all before it is done, and query i+1 when it has ended.
int gv_record_timed(gv_device *d, gv_timer *t, void *commands, gv_command const *c, size_t n, uint64_t queries) {
	int r = gv_begin(d, commands, 0);
	if (r) return r;
	t->reset(commands, queries, 0, (uint32_t)n + 1);
	t->write(commands, BOTTOM_OF_PIPE, queries, 0);
	gv_bound bound = {0, 0};
	for (size_t i = 0; i < n; i++) {
		gv_command alone = c[i];
		alone.barrier = 1;
		gv_put(d, commands, &alone, &bound);
		t->write(commands, BOTTOM_OF_PIPE, queries, (uint32_t)i + 1);
	}
	return gv_end(d, commands);
}

// gv_times reads n queries of a submission that is done.
int gv_times(gv_timer *t, uint64_t queries, uint32_t n, uint64_t *ticks) {
	return t->results(t->device, queries, 0, n, n * sizeof *ticks, ticks, sizeof *ticks, RESULT_64 | WAIT);
}
