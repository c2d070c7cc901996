// AMX multiplies bf16. A tile register has 16 rows of 64 bytes.
typedef struct { unsigned char palette, start, zero[14]; u16 bytes[16]; unsigned char rows[16]; } mm_config;

// mm_configure makes the registers of the thread usable until mm_release.
MM_INLINE void mm_configure(void) {
	mm_config c = {.palette = 1};
	for (int i = 0; i < 8; i++) c.bytes[i] = 64, c.rows[i] = 16;
	__asm__ volatile("ldtilecfg %0" : : "m"(c));
}
MM_INLINE void mm_release(void) { __asm__ volatile("tilerelease" : : : "memory"); }

#define MM_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : : : "memory")
#define MM_READ(t, from, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((u64)(stride)) : "memory")
#define MM_WRITE(t, to, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((u64)(stride)) : "memory")
#define MM_DOT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : : : "memory")
