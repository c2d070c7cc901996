// Package wasm runs users' WebAssembly modules in a sandbox. Modules can access only their arguments, and their memory,
// work, time and call depth are bounded. This package loads modules, calls them, and returns a result or an [*Error]
// whatever they do. Package wasm/hook defines the hooks: documents, batches, losses and others.
//
// A [Runtime] compiles modules, with wazero's compiler or, where there is none, its interpreter, and caches the
// compiled code on disk. A [Module] is checked and metered (package wasm/meter). An [Instance] has a memory, globals
// and a random stream. One goroutine at a time may use it; a [Pool] manages several.
//
// # The guest's side of the ABI, version 1
//
// A module is a wasm32 core module. It exports
//
//	memory                                          its memory
//	gpupipe_abi_v1  () → i32                        the minor version of the ABI that it needs, 0 so far
//	gpupipe_alloc   (size i32) → i32                memory for the host, see below
//	_initialize     ()                              optional: called once, first (WASI reactors)
//	gpupipe_open    (config i32, length i32, seed i64) → i32   optional: called once, second
//	gpupipe_save    (state i32, capacity i32) → i32            optional, with gpupipe_load
//	gpupipe_load    (state i32, length i32) → i32              optional, with gpupipe_save
//	NAME            (arrays i32, count i32) → i32              any number of hooks
//
// gpupipe_alloc returns the address of size bytes, a multiple of 16. They belong to the host as long as the instance
// lives: the host reuses them and frees nothing. 0 means that no memory is left.
//
// gpupipe_open gets the hook's configuration as JSON in UTF-8, which is valid during the call only, and its seed.
//
// A call fails if its result is negative or if it called fail. The hook defines the meaning of other results. Other
// results of gpupipe_open and gpupipe_load mean success.
//
// gpupipe_save writes the instance's state to the given address if it fits the capacity. It returns the length of the
// state in any case; the host first calls it with capacity 0. gpupipe_load gets the same bytes, in an instance that was
// opened with the same configuration and seed.
//
// # Arrays
//
// A hook gets the address of count descriptors, 32 bytes each, little-endian:
//
//	offset 0  u32 dtype      1 f32, 2 i32, 3 u8, 4 i64, 5 u32, 6 f64
//	       4  u32 flags      1 in, 2 out, 3 both
//	       8  u32 rank       0 to 4
//	      12  u32 dims[4]    unused ones are 1
//	      28  u32 data       address, a multiple of 16
//
// The last dimension is contiguous. Before the call an output's dims are its capacity. The hook stores the shape of
// what it wrote, which has the same rank and at most as many elements. A call that stores a larger shape, or changes
// any other field of a descriptor, fails.
//
// # What a module may import
//
//	gpupipe.log   (text i32, length i32)    a line for the user, UTF-8
//	gpupipe.fail  (text i32, length i32)    why the call fails; fail returns, and the hook should return after it
//	gpupipe.config_key  (key i32, length i32)    a config key that the module reads; see [Instance.CheckKeys]
//	wasi_snapshot_preview1.*                the functions that the runtime of a Go or Rust program needs
//
// and the functions of [Config.Imports]. The system interface has no files, no network, no environment and no
// arguments. Descriptors 1 and 2 write to the log; other functions on files fail as in a process without permissions.
// Random bytes depend only on the seed and the batch. The clock does not show wall time. At the start of a call it is
// batch seconds after its origin; it advances by a nanosecond for a unit of work, by a microsecond for each reading,
// and to the end of a sleep. So a call's results depend only on its arguments, the seed, the batch and the module's
// state.
//
// # Errors
//
// A call that fails, for whatever reason, returns an [*Error] that names hook, export, batch and [Kind]. Every kind
// except [Failed] and [Busy] closes the instance, since its memory may be inconsistent: further calls return [Closed].
// A module cannot crash the process, and a closed instance holds no resources.
//
// Work is counted, not timed, so a call exceeds its budget at the same instruction on every machine. The deadline is in
// wall time, for budgets that are too large. Between two checks a module does at most 500,000 units of work or copies 1
// MiB, which takes milliseconds. Garbage collection and other goroutines can run at each check. Only clearing a memory
// of gigabytes, when it grows, takes longer.
package wasm
