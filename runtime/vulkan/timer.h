// Timestamps of a device's queue. Functions that return an int return a VkResult.
#ifndef GPUPIPE_VULKAN_TIMER_H
#define GPUPIPE_VULKAN_TIMER_H

#include "native.h"

typedef struct gv_timer gv_timer;

uint32_t gv_timestamp_bits(void *get, void *instance, void *physical, uint32_t family);
gv_timer *gv_new_timer(void *get, void *instance, void *device);
void gv_free_timer(gv_timer *t);
int gv_new_queries(gv_timer *t, uint32_t n, uint64_t *queries);
void gv_free_queries(gv_timer *t, uint64_t queries);
int gv_record_timed(gv_device *d, gv_timer *t, void *commands, gv_command const *c, size_t n, uint64_t queries);
int gv_times(gv_timer *t, uint64_t queries, uint32_t n, uint64_t *ticks);

#endif
