package wasm

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

const wasiModule = "wasi_snapshot_preview1"

// Errors of the system interface.
const (
	errnoSuccess    = 0
	errnoBadFile    = 8
	errnoFault      = 21
	errnoInvalid    = 28
	errnoNoSystem   = 52
	errnoSeek       = 70
	errnoNotCapable = 76
)

// wasiFunctions lists all functions of preview 1 with their parameters: i for i32, I for i64. A function without call
// returns errno.
var wasiFunctions = []struct {
	name, params string
	errno        uint64
	call         func(*Instance, []uint64) (errno uint64)
}{
	{name: "args_get", params: "ii"}, {name: "environ_get", params: "ii"},
	{name: "args_sizes_get", params: "ii", call: wasiNothing}, {name: "environ_sizes_get", params: "ii", call: wasiNothing},
	{name: "clock_res_get", params: "ii", call: wasiClockResolution}, {name: "clock_time_get", params: "iIi", call: wasiClock},
	{name: "sched_yield"},
	{name: "poll_oneoff", params: "iiii", call: wasiPoll},
	{name: "fd_write", params: "iiii", call: wasiWrite}, {name: "fd_read", params: "iiii", call: wasiRead},
	{name: "fd_fdstat_get", params: "ii", call: wasiStat}, {name: "fd_fdstat_set_flags", params: "ii"}, {name: "fd_close", params: "i"},
	{name: "fd_seek", params: "iIii", errno: errnoSeek}, {name: "fd_tell", params: "ii", errno: errnoSeek},
	{name: "fd_prestat_get", params: "ii", errno: errnoBadFile}, {name: "fd_prestat_dir_name", params: "iii", errno: errnoBadFile},
	{name: "fd_advise", params: "iIIi", errno: errnoBadFile}, {name: "fd_allocate", params: "iII", errno: errnoBadFile},
	{name: "fd_datasync", params: "i", errno: errnoBadFile}, {name: "fd_fdstat_set_rights", params: "iII", errno: errnoBadFile},
	{name: "fd_filestat_get", params: "ii", errno: errnoBadFile}, {name: "fd_filestat_set_size", params: "iI", errno: errnoBadFile},
	{name: "fd_filestat_set_times", params: "iIIi", errno: errnoBadFile}, {name: "fd_pread", params: "iiiIi", errno: errnoBadFile},
	{name: "fd_pwrite", params: "iiiIi", errno: errnoBadFile}, {name: "fd_readdir", params: "iiiIi", errno: errnoBadFile},
	{name: "fd_renumber", params: "ii", errno: errnoBadFile}, {name: "fd_sync", params: "i", errno: errnoBadFile},
	{name: "path_create_directory", params: "iii", errno: errnoNotCapable}, {name: "path_filestat_get", params: "iiiii",
		errno: errnoNotCapable},
	{name: "path_filestat_set_times", params: "iiiiIIi", errno: errnoNotCapable},
	{name: "path_link", params: "iiiiiii", errno: errnoNotCapable},
	{name: "path_open", params: "iiiiiIIii", errno: errnoNotCapable}, {name: "path_readlink", params: "iiiiii", errno: errnoNotCapable},
	{name: "path_remove_directory", params: "iii", errno: errnoNotCapable}, {name: "path_rename", params: "iiiiii", errno: errnoNotCapable},
	{name: "path_symlink", params: "iiiii", errno: errnoNotCapable}, {name: "path_unlink_file", params: "iii", errno: errnoNotCapable},
	{name: "proc_raise", params: "i", errno: errnoNoSystem}, {name: "sock_accept", params: "iii", errno: errnoNoSystem},
	{name: "sock_recv", params: "iiiiii", errno: errnoNoSystem}, {name: "sock_send", params: "iiiii", errno: errnoNoSystem},
	{name: "sock_shutdown", params: "ii", errno: errnoNoSystem},
}

func wasiImports() []Import {
	imports := []Import{{Name: "proc_exit", Params: []api.ValueType{i32}, Call: func(_ *Instance, s []uint64) error {
		return halted(Exit, "called proc_exit with code %d", uint32(s[0]))
	}}, {Name: "random_get", Params: []api.ValueType{i32, i32}, Results: []api.ValueType{i32}, Call: wasiRandom}}
	for _, f := range wasiFunctions {
		im := Import{Name: f.name, Results: []api.ValueType{i32}}
		for _, p := range f.params {
			im.Params = append(im.Params, map[rune]api.ValueType{'i': i32, 'I': i64}[p])
		}
		im.Call = func(i *Instance, s []uint64) error {
			i.Charge(abi.HostCall)
			errno := f.errno
			if f.call != nil {
				errno = f.call(i, s)
			}
			s[0] = errno
			return nil
		}
		imports = append(imports, im)
	}
	return imports
}

// store writes a number of 4 or 8 bytes to the module's memory and returns the error number.
func (i *Instance) store(address uint64, value uint64, size int) uint64 {
	ok := false
	if size == 4 {
		ok = i.memory.WriteUint32Le(uint32(address), uint32(value))
	} else {
		ok = i.memory.WriteUint64Le(uint32(address), value)
	}
	if !ok {
		return errnoFault
	}
	return errnoSuccess
}

// wasiNothing stores zeros as the number and size of arguments or environment variables.
func wasiNothing(i *Instance, s []uint64) uint64 {
	return max(i.store(s[0], 0, 4), i.store(s[1], 0, 4))
}

// The start of the module's clock, and the time between batches.
var clockStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	clockBatch = time.Second
	clockRead  = time.Microsecond
)

// now is the time of the module's clock in nanoseconds. It depends only on the batch and on the work of the call so
// far.
func (i *Instance) now() uint64 {
	return uint64(clockStart.UnixNano()) + uint64(i.call.Batch+1)*uint64(clockBatch) + uint64(i.units()) + i.call.passed
}

func wasiClock(i *Instance, s []uint64) uint64 {
	if uint32(s[0]) > 3 {
		return errnoInvalid
	}
	i.call.passed += uint64(clockRead)
	return i.store(s[2], i.now(), 8)
}

func wasiClockResolution(i *Instance, s []uint64) uint64 {
	if uint32(s[0]) > 3 {
		return errnoInvalid
	}
	return i.store(s[1], uint64(clockRead), 8)
}

// wasiRandom writes random bytes. It stops with an error if the call's budget or time is used up.
func wasiRandom(i *Instance, s []uint64) error {
	i.Charge(abi.HostCall)
	b, ok := i.memory.Read(uint32(s[0]), uint32(s[1]))
	if s[0] = errnoSuccess; !ok {
		s[0] = errnoFault
	}
	if i.Charge(int64(len(b))); i.call.Exceeds(i.units()) {
		return i.overdrawn()
	}
	for ; len(b) > 0; b = b[min(len(b), piece):] {
		i.random().Read(b[:min(len(b), piece)])
		if err := i.overdue(); err != nil {
			return err
		}
	}
	return nil
}

// maxVectors is the most buffers of one write.
const maxVectors = 1024

func wasiWrite(i *Instance, s []uint64) uint64 {
	if fd := uint32(s[0]); fd != 1 && fd != 2 {
		return errnoBadFile
	}
	if uint32(s[2]) > maxVectors {
		return errnoInvalid
	}
	vectors, ok := i.memory.Read(uint32(s[1]), uint32(s[2])*8)
	if !ok {
		return errnoFault
	}
	total := uint64(0)
	for ; len(vectors) > 0; vectors = vectors[8:] {
		b, ok := i.memory.Read(binary.LittleEndian.Uint32(vectors), binary.LittleEndian.Uint32(vectors[4:]))
		if !ok {
			return errnoFault
		}
		i.Charge(16 + int64(min(len(b), i.call.output.left))/8)
		i.call.output.write(b)
		total += uint64(len(b))
	}
	return i.store(s[3], min(total, 1<<32-1), 4)
}

// wasiRead reads no bytes, since standard input is empty.
func wasiRead(i *Instance, s []uint64) uint64 {
	if uint32(s[0]) != 0 {
		return errnoBadFile
	}
	return i.store(s[3], 0, 4)
}

// wasiStat reports that the standard descriptors are character devices.
func wasiStat(i *Instance, s []uint64) uint64 {
	if uint32(s[0]) > 2 {
		return errnoBadFile
	}
	stat := make([]byte, 24)
	stat[0] = 2
	if !i.memory.Write(uint32(s[1]), stat) {
		return errnoFault
	}
	return errnoSuccess
}

// wasiPoll does not wait. It reports all descriptors as ready. If there are none, the module's clock advances to the
// end of the shortest sleep.
func wasiPoll(i *Instance, s []uint64) uint64 {
	n := uint32(s[2])
	if n == 0 || n > maxVectors {
		return errnoInvalid
	}
	i.Charge(int64(n) * 16)
	in, ok := i.memory.Read(uint32(s[0]), n*48)
	if !ok {
		return errnoFault
	}
	var events strings.Builder
	event := func(subscription []byte) {
		e := make([]byte, 32)
		copy(e, subscription[:8])
		e[10] = subscription[8]
		events.Write(e)
	}
	soonest, wait := []byte(nil), uint64(0)
	for ; len(in) > 0; in = in[48:] {
		if in[8] != 0 {
			event(in)
			continue
		}
		w := binary.LittleEndian.Uint64(in[24:])
		if in[40]&1 != 0 { // an absolute time
			w -= min(w, i.now())
		}
		if soonest == nil || w < wait {
			soonest, wait = in[:48], w
		}
	}
	if events.Len() == 0 {
		i.call.passed += min(wait, uint64(24*time.Hour))
		event(soonest)
	}
	if !i.memory.WriteString(uint32(s[1]), events.String()) {
		return errnoFault
	}
	return i.store(s[3], uint64(events.Len()/32), 4)
}
