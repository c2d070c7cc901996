#!/bin/sh
# Shows which kernels differ from those of a commit, HEAD unless another is given. The commit's own program generates its
# kernels, once: build/replay keeps them.
set -eu
base=$(git rev-parse --verify "${1:-HEAD}^{commit}")
kept=$PWD/build/replay/$base
if [ ! -e "$kept" ]; then
	tree=build/replay/tree
	git worktree remove --force "$tree" 2>/dev/null || true
	git worktree add --quiet --detach "$tree" "$base"
	(cd "$tree" && go run ./cmd/replay -write "$kept.part")
	git worktree remove --force "$tree"
	mv "$kept.part" "$kept"
fi
go run ./cmd/replay -against "$kept"
