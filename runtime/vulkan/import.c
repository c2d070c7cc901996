//go:build linux

#include "import.h"

#include <stdlib.h>

#include "native.h"

typedef void (*function)(void);
typedef function (*get_function)(void *object, char const *name);

typedef struct { uint32_t type; void *next; } head;
typedef struct { head head; uint64_t properties[128]; } properties2; // larger than VkPhysicalDeviceProperties
typedef struct { head head; uint64_t alignment; } host_properties;
typedef struct { head head; uint32_t flags, usage, handle; } external_query;
typedef struct { head head; uint32_t features, exportable, compatible; } external_properties;
typedef struct { head head; uint32_t handles; } external_buffer;
typedef struct { head head; uint32_t flags; uint64_t size; uint32_t usage, sharing, families; void const *family; } buffer_info;
typedef struct { uint64_t size, alignment; uint32_t types; } requirements;
typedef struct { head head; uint32_t types; } pointer_properties;
typedef struct { head head; uint32_t handle; void *pointer; } pointer_info;
typedef struct { head head; uint64_t size; uint32_t kind; } allocate_info;

enum { // VkStructureType
	T_ALLOCATE = 5, T_BUFFER = 12, T_PROPERTIES2 = 1000059001, T_EXTERNAL_QUERY = 1000071002, T_EXTERNAL_PROPERTIES = 1000071003,
	T_EXTERNAL_BUFFER = 1000072000, T_POINTER = 1000178000, T_POINTER_PROPERTIES = 1000178001, T_HOST_PROPERTIES = 1000178002,
};
enum { HOST_ALLOCATION = 0x80 };             // VkExternalMemoryHandleTypeFlagBits
enum { DEDICATED_ONLY = 1, IMPORTABLE = 4 }; // VkExternalMemoryFeatureFlagBits
enum { USAGE = 1 | 2 | 0x20 };               // VkBufferUsageFlagBits: transfers from and to, storage

struct gv_importer {
	void *device;
	int (*create)(void *, void const *, void const *, uint64_t *);
	void (*destroy)(void *, uint64_t, void const *);
	void (*needs)(void *, uint64_t, requirements *);
	int (*types)(void *, uint32_t, void const *, pointer_properties *);
	int (*allocate)(void *, void const *, void const *, uint64_t *);
	void (*release)(void *, uint64_t, void const *);
	int (*bind)(void *, uint64_t, uint64_t, uint64_t);
};

// gv_import_alignment returns what addresses and sizes must be multiples of, or 0 where buffers cannot lie in memory of
// the host.
uint64_t gv_import_alignment(void *get_, void *instance, void *physical) {
	get_function get = (get_function)get_;
	if (!gv_has_extension(get_, instance, physical, "VK_EXT_external_memory_host")) return 0;
	void (*query)(void *, void *) = (void (*)(void *, void *))get(instance, "vkGetPhysicalDeviceProperties2");
	void (*buffers)(void *, void const *, void *) =
		(void (*)(void *, void const *, void *))get(instance, "vkGetPhysicalDeviceExternalBufferProperties");
	if (!query || !buffers) return 0;
	external_query of = {.head.type = T_EXTERNAL_QUERY, .usage = USAGE, .handle = HOST_ALLOCATION};
	external_properties external = {.head.type = T_EXTERNAL_PROPERTIES};
	buffers(physical, &of, &external);
	if (!(external.features & IMPORTABLE) || external.features & DEDICATED_ONLY) return 0;
	host_properties host = {.head.type = T_HOST_PROPERTIES};
	properties2 all = {.head = {T_PROPERTIES2, &host}};
	query(physical, &all);
	return host.alignment;
}

// gv_new_importer returns NULL where a function is missing.
gv_importer *gv_new_importer(void *get_, void *instance, void *device) {
	get_function get = (get_function)((get_function)get_)(instance, "vkGetDeviceProcAddr");
	gv_importer *i = calloc(1, sizeof *i);
	if (!i) return NULL;
	i->device = device;
#define FIND(field, name) *(function *)&i->field = get(device, name)
	FIND(create, "vkCreateBuffer");
	FIND(destroy, "vkDestroyBuffer");
	FIND(needs, "vkGetBufferMemoryRequirements");
	FIND(types, "vkGetMemoryHostPointerPropertiesEXT");
	FIND(allocate, "vkAllocateMemory");
	FIND(release, "vkFreeMemory");
	FIND(bind, "vkBindBufferMemory");
#undef FIND
	if (i->create && i->destroy && i->needs && i->types && i->allocate && i->release && i->bind) return i;
	free(i);
	return NULL;
}

void gv_free_importer(gv_importer *i) { free(i); }

// take imports memory as one of the memory types that both the buffer and the pointer can have.
static int take(gv_importer *i, void *memory, uint64_t size, uint32_t types, gv_imported *out) {
	requirements need = {0, 0, 0};
	i->needs(i->device, out->buffer, &need);
	pointer_properties can = {.head.type = T_POINTER_PROPERTIES};
	int r = i->types(i->device, HOST_ALLOCATION, memory, &can);
	if (r) return r;
	types &= need.types & can.types;
	if (!types || need.size > size) return GV_NO_MEMORY_TYPE;
	pointer_info pointer = {.head.type = T_POINTER, .handle = HOST_ALLOCATION, .pointer = memory};
	allocate_info info = {.head = {T_ALLOCATE, &pointer}, .size = size, .kind = (uint32_t)__builtin_ctz(types)};
	r = i->allocate(i->device, &info, NULL, &out->memory);
	if (r) return r;
	r = i->bind(i->device, out->buffer, out->memory, 0);
	if (r) i->release(i->device, out->memory, NULL);
	return r;
}

// gv_import makes a buffer of memory, which must outlive it, of one of those memory types.
int gv_import(gv_importer *i, void *memory, uint64_t size, uint32_t types, gv_imported *out) {
	external_buffer external = {.head.type = T_EXTERNAL_BUFFER, .handles = HOST_ALLOCATION};
	buffer_info info = {.head = {T_BUFFER, &external}, .size = size, .usage = USAGE};
	int r = i->create(i->device, &info, NULL, &out->buffer);
	if (r) return r;
	r = take(i, memory, size, types, out);
	if (r) i->destroy(i->device, out->buffer, NULL);
	return r;
}

void gv_free_imported(gv_importer *i, gv_imported const *x) {
	i->destroy(i->device, x->buffer, NULL);
	i->release(i->device, x->memory, NULL);
}
