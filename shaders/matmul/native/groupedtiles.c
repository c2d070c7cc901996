#define NARROW (N % NR > 0 && N % NR <= VL) // the last panel has one vector
MM_TILE(mm_whole, MR, 2)
#if MR > 8
MM_TILE(mm_rest8, 8, 2)
#endif
#if MR > 4
MM_TILE(mm_rest4, 4, 2)
#endif
MM_TILE(mm_rest2, 2, 2)
MM_TILE(mm_rest1, 1, 2)
#if NARROW
MM_TILE(mm_whole_narrow, MR, 1)
MM_TILE(mm_rest1_narrow, 1, 1)
#endif

// mm_any adds to the sums of a tile of any place: rows is at most MR. The rows that a group leaves are tiles of powers
// of two, so that no tile reads rows of another group.
MM_INLINE void mm_any(const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place, int cold, u64 rows, u64 columns) {
#if NARROW
	if (columns <= VL) {
		if (rows == MR) mm_whole_narrow(a, b, steps, c, ld, begin, place, cold);
		else for (u64 r = 0; r < rows; r++) mm_rest1_narrow(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold);
		return;
	}
#endif
	if (rows == MR) {
		mm_whole(a, b, steps, c, ld, begin, place, cold);
		return;
	}
	u64 r = 0;
#if MR > 8
	if (rows & 8) mm_rest8(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold), r += 8;
#endif
#if MR > 4
	if (rows & 4) mm_rest4(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold), r += 4;
#endif
	if (rows & 2) mm_rest2(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold), r += 2;
	if (rows & 1) mm_rest1(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold);
}

