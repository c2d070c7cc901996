// Runs kernels. Each line of its input is a command:
//
//	library symbol x y z n file offset bytes … (n arguments)
//
// It loads the library and dispatches x·y·z workgroups with copies of the arguments, which it writes back. Workgroups
// run in two ranges, the later first, since they are independent. It answers each command with a line "done".
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct { void *at; uint64_t bytes; } arg;
typedef void (*kernel)(const arg *args, uint32_t first, uint32_t last, const uint32_t *grid);

enum { align = 64, most = 64 };

static void fail(const char *what) {
	fprintf(stderr, "harness: %s\n", what);
	exit(1);
}

#ifdef __SANITIZE_ADDRESS__
// The memory around an allocation is poisoned.
static void *reserve(uint64_t bytes, void **whole, uint64_t *size) {
	(void)size;
	if (posix_memalign(whole, align, bytes)) fail("no memory");
	return *whole;
}
static void release(void *whole, uint64_t size, const char *end) { (void)size; (void)end; free(whole); }
#else
// reserve returns memory between two pages without access. Up to 63 bytes behind it are set to a pattern.
static void *reserve(uint64_t bytes, void **whole, uint64_t *size) {
	uint64_t page = sysconf(_SC_PAGESIZE), middle = (bytes + page - 1) / page * page;
	*size = middle + 2 * page;
	char *at = *whole = mmap(0, *size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || mprotect(at + page, middle, PROT_READ | PROT_WRITE)) fail("no memory");
	memset(at + page, 0xa5, middle);
	return at + page + (middle - bytes) / align * align;
}

static void release(void *whole, uint64_t size, const char *end) {
	const char *last = (char *)whole + size - sysconf(_SC_PAGESIZE);
	for (; end < last; end++)
		if (*end != (char)0xa5) fail("a kernel has written behind its buffer");
	munmap(whole, size);
}
#endif

static kernel find(const char *library, const char *symbol) {
	void *l = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	kernel k = l ? (kernel)dlsym(l, symbol) : 0;
	if (!k) fail(dlerror());
	return k;
}

int main(void) {
#ifdef __x86_64__
	syscall(SYS_arch_prctl, 0x1023, 18); // ARCH_REQ_XCOMP_PERM for the tile registers of AMX, if the CPU has them
#endif
	static char library[4096], symbol[256], file[most][4096];
	uint32_t grid[3];
	int n;
	while (scanf("%4095s %255s %u %u %u %d", library, symbol, grid, grid + 1, grid + 2, &n) == 6) {
		arg args[most];
		void *whole[most];
		uint64_t size[most];
		long long offset[most];
		if (n > most) fail("too many arguments");
		for (int i = 0; i < n; i++) {
			unsigned long long bytes;
			if (scanf("%4095s %lld %llu", file[i], &offset[i], &bytes) != 3) fail("an incomplete command");
			args[i] = (arg){reserve(bytes, &whole[i], &size[i]), bytes};
			int fd = open(file[i], O_RDONLY);
			if (pread(fd, args[i].at, bytes, offset[i]) != (ssize_t)bytes) fail("a buffer's file is too short");
			close(fd);
		}
		kernel k = find(library, symbol);
		uint32_t groups = grid[0] * grid[1] * grid[2], middle = groups / 2;
		k(args, middle, groups, grid);
		k(args, 0, middle, grid);
		for (int i = 0; i < n; i++) {
			int fd = open(file[i], O_WRONLY);
			if (pwrite(fd, args[i].at, args[i].bytes, offset[i]) != (ssize_t)args[i].bytes) fail("a buffer's file cannot be written");
			close(fd);
			release(whole[i], size[i], (char *)args[i].at + args[i].bytes);
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
