// Every pass is this file and one of the others, behind the definitions of its sizes: BATCH, M, N, K, STRIDE_A,
// STRIDE_B (elements between matrices), TRANS_A, TRANS_B, and A, B and C, the element types: f32, f16 or bf16.

#define VL (VEC_BYTES / 4) // lanes of a vector
#define NR (2 * VL)        // columns of a register tile, and of a panel of packed B
#if VEC_BYTES == 64
#define MR 12 // rows of a register tile
#elif VEC_BYTES == 32
#define MR 6
#elif defined(__aarch64__)
#define MR 8
#else
#define MR 4
#endif

#define MM_INLINE static inline __attribute__((always_inline, unused))
#define MM_PASTE(a, b) a##b
#define MM_CALL(a, b) MM_PASTE(a, b)
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef unsigned short u16;
typedef u32 vecw __attribute__((vector_size(VEC_BYTES)));
typedef u16 vech __attribute__((vector_size(VEC_BYTES / 2)));
typedef f32 vec4 __attribute__((vector_size(16)));
typedef u32 vec4w __attribute__((vector_size(16)));
typedef u16 vec4h __attribute__((vector_size(8)));

// mm_t_E is how an element of type E is stored, mm_widen_E its value, mm_load4_E the value of four, mm_load_E that of a
// vector of them.
typedef f32 mm_t_f32;
typedef u16 mm_t_f16;
typedef u16 mm_t_bf16;

// MM_WIDEN_F16 defines the value of 16-bit floats whose bits are words: normal numbers, subnormal ones, and infinities
// with NaNs differ in what is added to the exponent.
#define MM_WIDEN_F16(name, F, W, MASK, CAST) \
	MM_INLINE F name(W h) { \
		W sign = (h & 0x8000u) << 16, magnitude = (h & 0x7fffu) << 13; \
		W small = MASK(magnitude < (1u << 23)), large = MASK(magnitude >= (31u << 23)); \
		W bits = magnitude + (112u << 23) + ((1u << 23) & small) + ((112u << 23) & large); \
		F value = CAST(F, bits) - CAST(F, (113u << 23) & small); \
		return CAST(F, CAST(W, value) | sign); \
	}
#define MM_MASK_SCALAR(x) (-(u32)(x))
#define MM_CAST_SCALAR(T, x) ({ __typeof__(x) mm_from = (x); T mm_to; __builtin_memcpy(&mm_to, &mm_from, 4); mm_to; })
#define MM_MASK_4(x) ((vec4w)(x))
#define MM_MASK_V(x) ((vecw)(x))
#define MM_CAST(T, x) ((T)(x))
MM_WIDEN_F16(mm_widen_f16, f32, u32, MM_MASK_SCALAR, MM_CAST_SCALAR)
MM_WIDEN_F16(mm_widen4_f16, vec4, vec4w, MM_MASK_4, MM_CAST)
MM_WIDEN_F16(mm_widenv_f16, vecf, vecw, MM_MASK_V, MM_CAST)
MM_INLINE f32 mm_widen_f32(f32 x) { return x; }
MM_INLINE f32 mm_widen_bf16(u32 h) { return MM_CAST_SCALAR(f32, h << 16); }

MM_INLINE vec4 mm_load4_f32(const f32 *p) { vec4 v; __builtin_memcpy(&v, p, 16); return v; }
MM_INLINE vec4w mm_words4(const u16 *p) { vec4h h; __builtin_memcpy(&h, p, 8); return __builtin_convertvector(h, vec4w); }
MM_INLINE vec4 mm_load4_f16(const u16 *p) { return mm_widen4_f16(mm_words4(p)); }
MM_INLINE vec4 mm_load4_bf16(const u16 *p) { return (vec4)(mm_words4(p) << 16); }

MM_INLINE vecf mm_load_f32(const f32 *p) { return *(const vecfu *)p; }
MM_INLINE vecw mm_words(const u16 *p) { vech h; __builtin_memcpy(&h, p, VEC_BYTES / 2); return __builtin_convertvector(h, vecw); }
MM_INLINE vecf mm_load_f16(const u16 *p) { return mm_widenv_f16(mm_words(p)); }
MM_INLINE vecf mm_load_bf16(const u16 *p) { return (vecf)(mm_words(p) << 16); }

#if defined(__clang__) || __GNUC__ >= 12
#define MM_SHUFFLE(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define MM_SHUFFLE(x, y, a, b, c, d) __builtin_shuffle(x, y, (vec4w){a, b, c, d})
#endif

// mm_rows4 makes the columns of four vectors rows.
MM_INLINE void mm_rows4(vec4 a, vec4 b, vec4 c, vec4 d, vec4 *rows) {
	vec4 ab = MM_SHUFFLE(a, b, 0, 4, 1, 5), cd = MM_SHUFFLE(c, d, 0, 4, 1, 5);
	vec4 ef = MM_SHUFFLE(a, b, 2, 6, 3, 7), gh = MM_SHUFFLE(c, d, 2, 6, 3, 7);
	rows[0] = MM_SHUFFLE(ab, cd, 0, 1, 4, 5), rows[1] = MM_SHUFFLE(ab, cd, 2, 3, 6, 7);
	rows[2] = MM_SHUFFLE(ef, gh, 0, 1, 4, 5), rows[3] = MM_SHUFFLE(ef, gh, 2, 3, 6, 7);
}

// MM_ARG is the argument of a binding. Where A and B are one, they are one argument.
#if SHARED
#define MM_ARG(i) args[(i) > 0 ? (i) - 1 : 0]
#else
#define MM_ARG(i) args[i]
#endif

#define A_T MM_CALL(mm_t_, A)
#define B_T MM_CALL(mm_t_, B)
#define C_T MM_CALL(mm_t_, C)

#ifdef EPILOGUE
#define VALUE(acc, b, i, j) epilogue(args, acc, b, i, j)
#else
#define VALUE(acc, b, i, j) (acc)
#endif

// mm_store stores the first n sums, those of row i of matrix b from column j on. The loop counts columns, so that the
// compiler knows that those of a vector are neighbors in the epilogue's arrays.
MM_INLINE void mm_store(const gp_arg *args, C_T *c, const f32 *sums, u64 n, u32 b, u32 i, u32 j) {
	const u32 end = j + (u32)n;
	c += ((u64)b * M + i) * N;
	#pragma omp simd
	for (u32 q = j; q < end; q++) c[q] = (C_T)VALUE(sums[(u64)q - j], b, i, q);
}

#ifdef PACKED // the type of the operand that the pass packs
#define P_T MM_CALL(mm_t_, PACKED)
#define P_WIDEN MM_CALL(mm_widen_, PACKED)
#define P_LOAD4 MM_CALL(mm_load4_, PACKED)

// mm_transpose4 stores the four by four elements whose lines lie ld apart.
MM_INLINE void mm_transpose4(f32 *to, u64 width, const P_T *from, u64 ld) {
	vec4 rows[4];
	mm_rows4(P_LOAD4(from), P_LOAD4(from + ld), P_LOAD4(from + 2 * ld), P_LOAD4(from + 3 * ld), rows);
	#pragma GCC unroll 4
	for (int k = 0; k < 4; k++) __builtin_memcpy(to + k * width, &rows[k], 16);
}

// mm_pack writes a panel: for each of the steps along k, the elements of lines rows or columns, and zeros up to width.
// The element at line i and step k lies at from[i * ld + k] where k is contiguous, and at from[k * ld + i] otherwise.
MM_INLINE void mm_pack(f32 *to, const u64 width, const P_T *from, const u64 ld, const int contiguous, u64 lines, u64 steps) {
	if (!contiguous) {
		if (lines == width) {
			for (u64 k = 0; k < steps; k++)
				for (u64 i = 0; i < width; i++) to[k * width + i] = P_WIDEN(from[k * ld + i]);
			return;
		}
		for (u64 k = 0; k < steps; k++) {
			for (u64 i = 0; i < lines; i++) to[k * width + i] = P_WIDEN(from[k * ld + i]);
			for (u64 i = lines; i < width; i++) to[k * width + i] = 0;
		}
		return;
	}
	u64 fours = lines / 4 * 4, whole = steps / 4 * 4;
	for (u64 k = 0; k < whole; k += 4)
		for (u64 i = 0; i < fours; i += 4) mm_transpose4(to + k * width + i, width, from + i * ld + k, ld);
	for (u64 i = 0; i < lines; i++)
		for (u64 k = i < fours ? whole : 0; k < steps; k++) to[k * width + i] = P_WIDEN(from[i * ld + k]);
	for (u64 k = 0; k < steps; k++)
		for (u64 i = lines; i < width; i++) to[k * width + i] = 0;
}
#endif
