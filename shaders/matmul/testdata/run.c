// Runs kernels: run FILE, which holds 32-bit numbers: the number of buffers, and for each its bytes and its contents,
// padded to four; then the number of passes, and for each the index of its kernel, its groups, the number of its
// arguments, and for each the buffer, the offset and the size. The program runs all passes three times, with the groups
// in order, one by one backwards, and in ranges of three from both ends, and writes buffer 2 to FILE.out after each.
// Buffers have exactly their size, so that sanitizers see what lies outside.
#include "prelude.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef void kernel(const gp_arg *, u32, u32, const u32 *);
extern kernel *kernels[];

static u32 number(FILE *f) {
	u32 x;
	if (fread(&x, 4, 1, f) != 1) abort();
	return x;
}

static void dispatch(kernel *k, const gp_arg *args, u32 groups, int order) {
	u32 grid[3] = {groups, 1, 1};
	if (order == 0) k(args, 0, groups, grid);
	if (order == 1)
		for (u32 g = groups; g-- > 0;) k(args, g, g + 1, grid);
	if (order == 2)
		for (u32 low = 0, high = groups; low < high;) {
			u32 from = high - low > 3 ? high - 3 : low;
			k(args, from, high, grid);
			high = from;
			if (low < high) k(args, low, low + 1, grid), low++;
		}
}

int main(int argc, char **argv) {
#ifdef __x86_64__
	syscall(SYS_arch_prctl, 0x1023, 18); // ARCH_REQ_XCOMP_PERM for the tile registers of AMX, if the CPU has them
#endif
	for (int a = 1; a < argc; a++) {
		FILE *f = fopen(argv[a], "rb");
		char name[4096];
		snprintf(name, sizeof name, "%s.out", argv[a]);
		FILE *out = fopen(name, "wb");
		if (!f || !out) abort();
		u32 n = number(f);
		char **at = calloc(n, sizeof *at);
		u64 *bytes = calloc(n, sizeof *bytes);
		for (u32 i = 0; i < n; i++) {
			char padding[4];
			bytes[i] = number(f);
			if (posix_memalign((void **)&at[i], 64, bytes[i])) abort();
			if (bytes[i] && fread(at[i], bytes[i], 1, f) != 1) abort();
			if (bytes[i] % 4 && fread(padding, 4 - bytes[i] % 4, 1, f) != 1) abort();
		}
		u32 passes = number(f);
		long begin = ftell(f);
		for (int order = 0; order < 3; order++) {
			fseek(f, begin, SEEK_SET);
			memset(at[2], 0xff, bytes[2]);
			memset(at[3], 0xff, bytes[3]);
			for (u32 p = 0; p < passes; p++) {
				kernel *k = kernels[number(f)];
				u32 groups = number(f), count = number(f);
				gp_arg args[8];
				for (u32 i = 0; i < count; i++) {
					u32 b = number(f), offset = number(f), size = number(f);
					if (offset + (u64)size > bytes[b]) abort();
					args[i] = (gp_arg){at[b] + offset, size};
				}
				dispatch(k, args, groups, order);
			}
			if (bytes[2] && fwrite(at[2], bytes[2], 1, out) != 1) abort();
		}
		for (u32 i = 0; i < n; i++) free(at[i]);
		free(at), free(bytes);
		fclose(f), fclose(out);
	}
}
