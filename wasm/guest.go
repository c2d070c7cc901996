package wasm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
	"github.com/gpupipe/gpupipe/wasm/meter"
)

// begin prepares a call.
func (i *Instance) begin(ctx context.Context, export string, batch int, budget int64) {
	i.call = call{Call: abi.Begin(export, batch, budget, i.module.limits.Deadline), ctx: ctx,
		output: output{line: i.options.Log, left: i.module.limits.LogBytes, partial: i.call.output.partial[:0],
			tail: i.call.output.tail[:0]}}
}

// random returns the call's stream of random bytes. It is seeded at its first use: few calls use it, and seeding takes
// a tenth of the time of a short call.
func (i *Instance) random() *rand.ChaCha8 {
	if i.call.random == nil {
		var seed [32]byte
		binary.LittleEndian.PutUint64(seed[:], i.options.Seed)
		binary.LittleEndian.PutUint64(seed[8:], uint64(int64(i.call.Batch)))
		copy(seed[16:], abi.Version)
		i.call.random = rand.NewChaCha8(seed)
	}
	return i.call.random
}

// finish ends a call and turns its error into an *Error. It closes the instance if the error may have left the module's
// memory in an inconsistent state.
func (i *Instance) finish(err error) error {
	i.call.used = i.units()
	if i.memory != nil {
		i.module.used(i.call.used, i.memorySize())
	}
	i.call.output.flush()
	i.call.ctx = nil
	if err == nil && i.call.Exceeds(i.call.used) { // exceeded after the last tick
		err = i.overdrawn()
	}
	if err == nil {
		return nil
	}
	kind, cause := i.classify(err)
	e := &Error{Hook: i.options.Hook, Export: i.call.Export, Batch: i.call.Batch, Kind: kind, Cause: cause}
	if kind != Failed {
		e.Output = printable(i.call.output.tail)
	}
	if _, reported := err.(*abi.Failure); !reported || kind != Failed {
		i.closed = e
		i.release()
	}
	return e
}

func (i *Instance) classify(err error) (Kind, error) {
	var (
		reported *abi.Failure
		host     *halt
	)
	kind := Trap
	switch {
	case errors.As(err, &reported):
		kind = Failed
	case errors.As(err, &host):
		kind, err = host.kind, host.cause
	case strings.HasPrefix(err.Error(), "wasm error: stack overflow"), err.Error() == "stack overflow":
		kind = Stack
	}
	if i.call.Refused && (kind == Trap || kind == Failed || kind == Exit) {
		kind, err = Memory, fmt.Errorf("asked for more than %d pages of memory, then: %w", i.module.limits.MemoryPages, oneLine(err))
	}
	if kind == Trap && i.call.Message != "" { // a panic in Rust calls fail and then traps
		err = fmt.Errorf("%s, then: %w", i.call.Message, oneLine(err))
	}
	return kind, oneLine(err)
}

// oneLine formats a trap and the innermost functions of its stack trace as one line.
func oneLine(err error) error {
	first, trace, traced := strings.Cut(err.Error(), "\nwasm stack trace:\n")
	if !traced {
		return err
	}
	first = strings.TrimPrefix(strings.TrimSuffix(first, " (recovered by wazero)"), "wasm error: ")
	var frames []string
	for line := range strings.Lines(trace) {
		if frames = append(frames, strings.TrimPrefix(strings.TrimSpace(line), ".")); len(frames) == 4 {
			break
		}
	}
	return errors.New(printable([]byte(first + " in " + strings.Join(frames, " < "))))
}

// attach sets the instance's memory and counter of work. A start function can call the host before instantiation has
// returned the guest.
func (i *Instance) attach(guest api.Module) {
	if i.fuel == nil {
		i.fuel = guest.ExportedGlobal(meter.Fuel).(api.MutableGlobal)
		i.memory = guest.ExportedMemory(abi.Memory)
	}
}

// refill grants the module the next quantum of its budget. It reports false if the budget is used up.
func (i *Instance) refill() bool {
	grant, ok := i.call.Refill(int64(i.fuel.Get()))
	i.fuel.Set(uint64(grant))
	return ok
}

// units returns the work that the call has done so far.
func (i *Instance) units() int64 {
	if i.fuel == nil {
		return i.call.Used(0)
	}
	return i.call.Used(int64(i.fuel.Get()))
}

// Work returns the units of work of the last call, including the host's work for it.
func (i *Instance) Work() int64 { return i.call.used }

// tick is called by code that package meter adds to the module.
func (i *Instance) tick(reason uint32) error {
	switch reason {
	case meter.OutOfRoom:
		return halted(Stack, "made more than %d nested calls", i.module.limits.Depth)
	case meter.GrowthRefused:
		i.call.Refused = true
		return i.overdue()
	}
	if !i.refill() {
		return i.overdrawn()
	}
	return i.overdue()
}

// overdue lets other goroutines run, and returns an error if the call's deadline has passed or its context has ended.
func (i *Instance) overdue() error {
	runtime.Gosched()
	switch {
	case i.call.ctx.Err() != nil:
		return &halt{Canceled, context.Cause(i.call.ctx)}
	case time.Now().After(i.call.Deadline):
		return halted(Deadline, "took more than %v", i.module.limits.Deadline)
	}
	return nil
}

func (i *Instance) overdrawn() error { return &halt{Budget, i.call.Overdrawn()} }

// invoke calls an export of the module. The result of a function without one is 0.
func (i *Instance) invoke(export string, args ...uint64) (int32, error) {
	f := i.functions[export]
	if f == nil {
		f = i.guest.ExportedFunction(export)
		i.functions[export] = f
	}
	copy(i.stack[:], args)
	if len(args) == 0 {
		i.stack[0] = 0
	}
	if err := i.run(f); err != nil {
		return 0, err
	}
	return int32(uint32(i.stack[0])), nil
}

// run calls a function, and turns a panic of the runtime into an error.
func (i *Instance) run(f api.Function) (err error) {
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("the WebAssembly runtime panicked: %v", e)
		}
	}()
	return f.CallWithStack(i.base, i.stack[:])
}

// reserve allocates memory of a size in the module for a slot, unless the slot has enough.
func (i *Instance) reserve(slot int, size uint32) error {
	b := &i.buffers[slot]
	if b.address != 0 && size <= b.size {
		return nil
	}
	want := (max(uint64(size), 16) + 15) &^ 15
	if b.size > 0 && want < 1<<24 { // sizes that grow slowly must not use up the memory
		want = max(want, (uint64(b.size)*3/2+15)&^15)
	}
	if want > 1<<32-1 {
		return halted(Memory, "an array has %d bytes, expected at most %d", want, uint32(1<<32-1))
	}
	result, err := i.invoke(abi.Alloc, want)
	if err != nil {
		return err
	}
	address := uint32(result)
	switch {
	case i.call.Failed:
		return i.call.Status(0, nil)
	case address == 0:
		return halted(Memory, "%s(%d) returned 0: no memory is left, the limit is %d pages", abi.Alloc, want, i.module.limits.MemoryPages)
	case address%16 != 0:
		return halted(Pointer, "%s(%d) returned %#x, expected a multiple of 16", abi.Alloc, want, address)
	case uint64(address)+want > i.memorySize():
		return halted(Pointer, "%s(%d) returned %#x, but the memory ends at %#x", abi.Alloc, want, address, i.memorySize())
	}
	*b = buffer{address, uint32(want)}
	return nil
}

// memorySize returns the size of the memory in bytes. For 4 GiB it exceeds the range of api.Memory.Size.
func (i *Instance) memorySize() uint64 {
	pages, _ := i.memory.Grow(0)
	return uint64(pages) << 16
}

// view returns a slot's memory, valid until the module runs again. It is within the memory, since reserve checked it
// and memory never shrinks.
func (i *Instance) view(slot int, n uint32) []byte {
	v, ok := i.memory.Read(i.buffers[slot].address, n)
	if !ok || n > i.buffers[slot].size {
		panic("wasm: a reserved buffer lies outside the memory")
	}
	return v
}

// text copies bytes to the module's memory and returns their address.
func (i *Instance) text(b []byte) (uint32, error) {
	if uint64(len(b)) > 1<<32-32 {
		return 0, halted(Memory, "the configuration or state has %d bytes, expected at most %d", len(b), uint32(1<<32-32))
	}
	if err := i.reserve(slotText, uint32(len(b))); err != nil {
		return 0, err
	}
	copyPieces(i.view(slotText, uint32(len(b))), b)
	return i.buffers[slotText].address, nil
}
