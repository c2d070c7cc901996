// Memory of the host that a device reaches itself (VK_EXT_external_memory_host).
#ifndef GPUPIPE_VULKAN_IMPORT_H
#define GPUPIPE_VULKAN_IMPORT_H

#include <stdint.h>

typedef struct gv_importer gv_importer;

// A buffer that lies in memory of the host.
typedef struct gv_imported { uint64_t buffer, memory; } gv_imported;

enum { GV_INVALID_EXTERNAL_HANDLE = -1000072003, GV_NO_MEMORY_TYPE = -(1 << 30) }; // the latter is no VkResult

uint64_t gv_import_alignment(void *get, void *instance, void *physical);
gv_importer *gv_new_importer(void *get, void *instance, void *device);
void gv_free_importer(gv_importer *i);
int gv_import(gv_importer *i, void *memory, uint64_t size, uint32_t types, gv_imported *out);
void gv_free_imported(gv_importer *i, gv_imported const *x);

#endif
