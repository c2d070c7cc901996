MM_TILE(mm_whole, MR, 2)
#if MR > 4
MM_TILE(mm_rest4, 4, 2)
#endif
MM_TILE(mm_rest2, 2, 2)
MM_TILE(mm_rest1, 1, 2)
MM_TILE(mm_whole_narrow, MR, 1)
MM_TILE(mm_rest1_narrow, 1, 1)

// mm_any adds to the sums of a tile of any place: rows is at most MR, and columns are all that N leaves from the tile's
// first on. The rows that M or a group leaves are smaller tiles, so that no tile reads rows behind them. The last
// panel may have one vector.
MM_INLINE void mm_any(const u64 *sizes, const f32 *a, const f32 *b, u64 steps, f32 *c, u64 ld, int begin, const mm_place *place, int cold, u64 rows, u64 columns) {
	if (columns <= VL) {
		if (rows == MR) mm_whole_narrow(a, b, steps, c, ld, begin, place, cold);
		else for (u64 r = 0; r < rows; r++) mm_rest1_narrow(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold);
		return;
	}
	if (rows == MR) {
		mm_whole(a, b, steps, c, ld, begin, place, cold);
		return;
	}
	u64 r = 0;
#if MR > 4
	for (; r + 4 <= rows; r += 4) mm_rest4(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold);
#endif
	if (rows & 2) mm_rest2(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold), r += 2;
	if (rows & 1) mm_rest1(a + r * A_ROW, b, steps, c + r * ld, ld, begin, place, cold);
}

