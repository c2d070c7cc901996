// Package wasm runs users' WebAssembly modules in a sandbox: they see what they are handed, and are bounded in memory,
// in work, in time and in depth. What a hook is for (documents, batches, losses) is said by the packages below; this
// one loads modules, calls them, and turns whatever they do into a result or an [*Error].
//
// A [Runtime] compiles modules (wazero's compiler where there is one, else its interpreter) and keeps what it compiled
// on disk. A [Module] has been checked and metered (package wasm/meter). An [Instance] is one of its machines: memory,
// globals, a random stream. It belongs to one goroutine at a time; a [Pool] hands out several.
//
// # The guest's side of the ABI, version 1
//
// A module is a wasm32 core module. It exports
//
//	memory                                          its memory
//	gpupipe_abi_v1  () → i32                        the least minor version of the ABI it needs, 0 so far
//	gpupipe_alloc   (size i32) → i32                memory for the host, see below
//	_initialize     ()                              optional: called once, first (WASI reactors)
//	gpupipe_open    (config i32, length i32, seed i64) → i32   optional: called once, second
//	gpupipe_save    (state i32, capacity i32) → i32            optional, with gpupipe_load
//	gpupipe_load    (state i32, length i32) → i32              optional, with gpupipe_save
//	NAME            (arrays i32, count i32) → i32              any number of hooks
//
// gpupipe_alloc returns the address of size bytes, a multiple of 16 and not 0, which stay the host's for the instance's
// life: the host reuses them and frees nothing. 0 means that memory is used up.
//
// gpupipe_open gets the hook's configuration as JSON in UTF-8 (valid during the call only) and its seed.
//
// A negative result is a failure, and so is any result of a call that called fail. Other results are the hook's to
// define; of gpupipe_open and gpupipe_load they mean success.
//
// gpupipe_save writes the instance's state to the given address, if it fits the capacity, and returns its length either
// way; the host first asks with capacity 0. gpupipe_load is given the same bytes, in an instance that was opened with
// the same configuration and seed.
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
// The last dimension is contiguous. An output's dims say on entry what there is room for; the hook stores the shape of
// what it wrote, of the same rank and of no more elements. Everything else in a descriptor is the host's; a hook that
// changes it, or claims more, fails.
//
// # What a module may import
//
//	gpupipe.log   (text i32, length i32)    a line for the user, UTF-8
//	gpupipe.fail  (text i32, length i32)    why the call fails; it returns, and the hook should too
//	gpupipe.config_key  (key i32, length i32)    a config key that the module reads; see [Instance.CheckKeys]
//	wasi_snapshot_preview1.*                what the runtime of a Go or Rust program needs to live, and no more
//
// and what the owner of the Runtime adds ([Config.Imports]). The system interface has no files, no network, no
// environment and no arguments: descriptors 1 and 2 write to the log, everything else of the kind fails as it does in a
// process without rights. Random bytes are a function of seed and batch. The clock is not the wall's: it stands at
// batch seconds past its start when a call begins, advances a nanosecond for a unit of work and a microsecond each time
// it is read, and leaps to the end of a sleep. So a call's results are a function of its arguments, the seed, the batch
// and the state that the module itself keeps.
//
// # When a call ends badly
//
// Whatever a module does, the call returns an [*Error] that names hook, export, batch and [Kind]. After any kind but
// [Failed] and [Busy] the instance is closed, since its memory may be in the middle of something: further calls return
// [Closed]. A process is never brought down by a module, and what an instance held is given back.
//
// Work is counted, not timed: a call that exceeds its budget does so at the same instruction on every machine. The
// deadline is the wall clock's, for the case that a budget is too generous. Between two checks at most 500,000 units
// and a copy of 1 MiB go by, some milliseconds; garbage collection and other goroutines run at each. Only a memory of
// gigabytes takes longer to be cleared when it grows.
package wasm
