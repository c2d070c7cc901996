// The groups of a product: GROUPED is the number of rows, or where GROUPED_SUMS of k's, that GROUPS share.
#define GROUP_OFFSETS ((const u32 *)MM_ARG(3).at)
#define GROUPED_ROWS (!GROUPED_SUMS)
#if GROUPED_ROWS
// mm_rows finds the rows of a block, from *i0 to *i1, and returns the group that they belong to. There are at most
// GROUPED / ROWS + GROUPS blocks; those that are too many have no rows.
MM_INLINE u64 mm_rows(const u32 *offsets, u64 block, u64 *i0, u64 *i1) {
	u64 begin = 0;
	for (u64 e = 0; e < GROUPS; e++) {
		u64 end = e + 1 < GROUPS ? MIN(offsets[e + 1], GROUPED) : GROUPED, blocks;
		if (end < begin) end = begin;
		blocks = (end - begin + ROWS - 1) / ROWS;
		if (block < blocks) {
			*i0 = begin + block * ROWS, *i1 = MIN(*i0 + ROWS, end);
			return e;
		}
		block -= blocks, begin = end;
	}
	*i0 = *i1 = 0;
	return 0;
}
#endif

#if GROUPED_SUMS && defined(GRAIN)
// MM_PLACE is where the panels have the k's of group e, which begin with k: at a multiple of GRAIN.
#define MM_PLACE(k, e) (((k) + GRAIN - 1) / GRAIN * GRAIN + (e) * GRAIN)
#endif
