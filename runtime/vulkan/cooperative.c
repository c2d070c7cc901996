//go:build linux

#include "cooperative.h"

#include <stddef.h>
#include <string.h>

#include "native.h"

typedef void (*function)(void);

enum { // VkStructureType
	T_FEATURES2 = 1000059000, T_FLOAT16 = 1000082000, T_STORAGE16 = 1000083000, T_BFLOAT16 = 1000141000, T_MEMORY_MODEL = 1000211000,
	T_SUBGROUP_SIZE = 1000225000, T_SUBGROUP_SIZE_CONTROL = 1000225002, T_MATRICES = 1000506000, T_PROPERTIES2 = 1000059001,
	T_MATRICES2 = 1000593000, T_FLEXIBLE = 1000593001, T_MATRICES2_PROPERTIES = 1000593002,
};

static void link_after(void *first, gv_feature *added) {
	added->next = ((gv_feature *)first)->next;
	((gv_feature *)first)->next = added;
}

static void typed(gv_cooperative_features *f) {
	memset(f, 0, sizeof *f);
	f->matrices.type = T_MATRICES;
	f->float16.type = T_FLOAT16;
	f->storage16.type = T_STORAGE16;
	f->memory_model.type = T_MEMORY_MODEL;
	f->bfloat16.type = T_BFLOAT16;
	f->subgroup_size.type = T_SUBGROUP_SIZE_CONTROL;
	f->second.type = T_MATRICES2;
}

// properties_of asks for what features alone do not tell. A pipeline's subgroups are asked for where that is a matter
// of compute shaders too.
static void properties_of(function (*get)(void *, char const *), void *instance, void *physical, gv_cooperative *out) {
	enum { COMPUTE_SHADER = 0x20 };
	// Larger than VkPhysicalDeviceProperties.
	struct { uint32_t type; void *next; uint64_t properties[128]; } all = {.type = T_PROPERTIES2};
	gv_feature second = {.type = T_MATRICES2_PROPERTIES}, sizes = {.type = T_SUBGROUP_SIZE};
	void (*query)(void *, void *) = (void (*)(void *, void *))get(instance, "vkGetPhysicalDeviceProperties2");
	if (query) {
		if (out->second) link_after(&all, &second);
		if (out->subgroup_size) link_after(&all, &sizes);
		query(physical, &all);
	}
	out->most_invocations = second.on[0];
	out->largest = second.on[1];
	out->reserved = second.on[2];
	if (!(sizes.on[3] & COMPUTE_SHADER)) out->subgroup_size = 0;
}

void gv_cooperative_of(void *get_, void *instance, void *physical, uint32_t version, gv_cooperative *out) {
	function (*get)(void *, char const *) = (function (*)(void *, char const *))get_;
	memset(out, 0, sizeof *out);
	void (*query)(void *, void *) = (void (*)(void *, void *))get(instance, "vkGetPhysicalDeviceFeatures2");
	if (!query || !gv_has_extension(get_, instance, physical, "VK_KHR_cooperative_matrix")) return;
	struct { uint32_t type; void *next; uint32_t core[55]; } all = {.type = T_FEATURES2};
	gv_cooperative_features f;
	typed(&f);
	link_after(&all, &f.matrices);
	link_after(&all, &f.float16);
	link_after(&all, &f.storage16);
	link_after(&all, &f.memory_model);
	uint32_t sizes = gv_at_least_13(version) ? 1 : gv_has_extension(get_, instance, physical, "VK_EXT_subgroup_size_control") ? GV_BY_EXTENSION : 0;
	if (sizes) link_after(&all, &f.subgroup_size);
	if (gv_has_extension(get_, instance, physical, "VK_KHR_shader_bfloat16")) link_after(&all, &f.bfloat16);
	int second = gv_has_extension(get_, instance, physical, "VK_NV_cooperative_matrix2");
	if (second) link_after(&all, &f.second);
	query(physical, &all);
	out->matrices = f.matrices.on[0] && f.float16.on[0] && f.storage16.on[0] && f.memory_model.on[0];
	out->bfloat16 = out->matrices && f.bfloat16.on[0] && f.bfloat16.on[2]; // the type, and matrices of it
	out->subgroup_size = out->matrices && f.subgroup_size.on[0] && f.subgroup_size.on[1] ? sizes : 0; // any, and full ones
	out->second = out->matrices && second;
	if (out->second) {
		out->workgroup_scope = f.second.on[0];
		out->flexible_sizes = f.second.on[1];
		out->tensor_addressing = f.second.on[5];
	}
	properties_of(get, instance, physical, out);
}

uint32_t gv_flexible_of(void *get_, void *instance, void *physical, gv_flexible *out) {
	typedef struct { uint32_t type; void *next; gv_flexible is; } properties;
	int (*query)(void *, uint32_t *, properties *) = (int (*)(void *, uint32_t *, properties *))
		((function (*)(void *, char const *))get_)(instance, "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV");
	if (!query) return 0;
	properties all[GV_MOST_FLEXIBLE];
	memset(all, 0, sizeof all);
	for (int i = 0; i < GV_MOST_FLEXIBLE; i++) all[i].type = T_FLEXIBLE;
	uint32_t n = GV_MOST_FLEXIBLE;
	if (query(physical, &n, all) < 0) return 0;
	for (uint32_t i = 0; i < n; i++) out[i] = all[i].is;
	return n;
}

void gv_enable_cooperative(gv_cooperative const *c, gv_cooperative_features *room, void *first, char const **extensions, uint32_t *count) {
	if (!c->matrices) return;
	typed(room);
	room->matrices.on[0] = room->float16.on[0] = room->storage16.on[0] = room->memory_model.on[0] = 1;
	link_after(first, &room->matrices);
	link_after(first, &room->float16);
	link_after(first, &room->storage16);
	link_after(first, &room->memory_model);
	extensions[(*count)++] = "VK_KHR_cooperative_matrix";
	if (c->bfloat16) {
		room->bfloat16.on[0] = room->bfloat16.on[2] = 1;
		link_after(first, &room->bfloat16);
		extensions[(*count)++] = "VK_KHR_shader_bfloat16";
	}
	if (c->second) {
		room->second.on[0] = c->workgroup_scope;
		room->second.on[1] = c->flexible_sizes;
		room->second.on[5] = c->tensor_addressing;
		link_after(first, &room->second);
		extensions[(*count)++] = "VK_NV_cooperative_matrix2";
	}
	if (c->subgroup_size) {
		room->subgroup_size.on[0] = room->subgroup_size.on[1] = 1;
		link_after(first, &room->subgroup_size);
		if (c->subgroup_size == GV_BY_EXTENSION) extensions[(*count)++] = "VK_EXT_subgroup_size_control";
	}
}
