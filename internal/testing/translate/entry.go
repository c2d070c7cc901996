package translate

import "strings"

// head opens the kernel: its bindings, and the loop over workgroups.
func (w *writer) head() {
	w.line("KERNEL {")
	for _, v := range w.bindings() {
		t := w.element(v).c()
		w.line("%s *restrict const %s_ = args[%d].at;\nconst u64 %s_n = args[%d].bytes / sizeof(%s);", t, v.name, v.binding, v.name,
			v.binding, t)
	}
	if !w.Inside {
		for _, v := range w.bindings() {
			w.line("if (%s_n == 0) return;", v.name) // there is no element for an index to be within
		}
	}
	w.line("for (u32 gp_turn = first; gp_turn < last; gp_turn++) {")
	w.line("const v3u32 gp_workgroup_id = {gp_turn %% grid[0], gp_turn / grid[0] %% grid[1], gp_turn / grid[0] / grid[1]};")
	w.line("const v3u32 gp_num_workgroups = {grid[0], grid[1], grid[2]};")
	for _, v := range w.m.variables {
		if v.binding < 0 {
			w.line("%s %s_memory = %s, *const %s_ = &%s_memory;", v.typ.c(), v.name, zero(v.typ), v.name, v.name)
		}
	}
}

const maxInvocations = 1 << 12 // of a workgroup

// size is the workgroup's size by dimension.
func (w *writer) size(f *function) [3]int {
	size := [3]int{1, 1, 1}
	for i, e := range f.workgroup {
		if size[min(i, 2)] = w.m.integer(e); size[min(i, 2)] < 1 || size[min(i, 2)] > 1<<16 {
			fail(f.line, "a workgroup of %d invocations", size[min(i, 2)])
		}
	}
	if n := size[0] * size[1] * size[2]; n > maxInvocations {
		fail(f.line, "a workgroup of %d invocations", n)
	}
	return size
}

// builtins are the values of an entry point's parameters for the invocation gp_lane.
func (w *writer) builtins(f *function) []string {
	var out []string
	for _, p := range f.parameters {
		t := &typ{vector, 3, u32Type}
		switch p.builtin {
		case "local_invocation_index":
			t = u32Type
			fallthrough
		case "workgroup_id", "num_workgroups", "local_invocation_id", "global_invocation_id":
			if !p.typ.equal(t) {
				fail(f.line, "%s is %s, expected %s", p.builtin, p.typ.wgsl(), t.wgsl())
			}
			out = append(out, map[string]string{"local_invocation_index": "gp_lane"}[p.builtin])
			if p.builtin != "local_invocation_index" {
				out[len(out)-1] = "gp_" + p.builtin
			}
		default:
			fail(f.line, "the parameter %s of the entry point has the built-in value %q", p.name, p.builtin)
		}
	}
	return out
}

// lane opens the loop over the invocations of a workgroup.
func (w *writer) lane(size [3]int) {
	w.line("for (u32 gp_lane = 0; gp_lane < %du; gp_lane++) {", size[0]*size[1]*size[2])
	w.line("const v3u32 gp_local_invocation_id = {gp_lane %% %du, gp_lane / %du %% %du, gp_lane / %du};", size[0], size[0], size[1],
		size[0]*size[1])
	w.line("const v3u32 gp_global_invocation_id = gp_workgroup_id * (v3u32){%du, %du, %du} + gp_local_invocation_id;", size[0], size[1],
		size[2])
	w.line("(void)gp_global_invocation_id;")
}

// invocations writes a kernel without barriers: each invocation is a call of the entry point.
func (w *writer) invocations(f *function) {
	if f.result != voidType {
		fail(f.line, "the entry point has a result")
	}
	w.function(f, "invocation")
	w.head()
	w.lane(w.size(f))
	w.line("invocation(%s);", strings.Join(append(append([]string(nil), w.context...), w.builtins(f)...), ", "))
	w.line("}\n}\n}")
}
