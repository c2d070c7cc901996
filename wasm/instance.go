package wasm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

// Options of an instance.
type Options struct {
	Hook   string // its name in messages; default the module's file
	Config []byte // JSON for gpupipe_open; default {}
	Seed   uint64
	Log    func(line string) // called on the goroutine of the call; nil drops the module's output
}

// Instance is an instance of a module: memory, globals, a random stream. One goroutine at a time may use it; a second
// one gets the error Busy.
type Instance struct {
	module    *Module
	options   Options
	guest     api.Module
	memory    api.Memory
	fuel      api.MutableGlobal
	functions map[string]api.Function
	buffers   [slots]buffer
	stack     [4]uint64
	base      context.Context // carries the instance to the host's functions
	busy      atomic.Bool
	closed    *Error // the reason; nil while the instance is open
	call      call
	keys      Keys // declared by the module
}

// call is the state of the call in progress.
type call struct {
	abi.Call
	ctx    context.Context
	output output
	passed uint64        // nanoseconds that the module's clock advanced besides its advance for work
	used   int64         // units, when the call has ended
	random *rand.ChaCha8 // nil until its first use
}

// The buffers in the module's memory that the host writes to.
const (
	slotDescriptors = iota
	slotText
	slotArrays
	slots = slotArrays + maxArrays
)

type buffer struct{ address, size uint32 }

type instanceKey struct{}

// Open makes an instance. It runs the start function, _initialize and gpupipe_open, if the module has them.
func (m *Module) Open(ctx context.Context, o Options) (*Instance, error) {
	set(&o.Hook, m.File)
	if o.Config == nil {
		o.Config = []byte("{}")
	}
	i := &Instance{module: m, options: o, functions: map[string]api.Function{}, keys: Keys{}}
	i.base = context.WithValue(context.Background(), instanceKey{}, i)
	i.begin(ctx, startFunction, -1, m.limits.Budget)
	if err := i.finish(i.open()); err != nil {
		i.release()
		return nil, err
	}
	return i, nil
}

func (i *Instance) open() error {
	// wazero calls no start functions: an exported _start is a program's main function, and _initialize is called
	// below.
	guest, err := i.instantiate()
	if err != nil {
		return err
	}
	i.guest = guest
	i.attach(guest)
	i.refill()
	if i.has(abi.Init) {
		if _, err := i.invoke(abi.Init); err != nil {
			return err
		}
	}
	version, err := i.invoke(abi.Version)
	if err != nil {
		return err
	}
	if err := abi.CheckVersion(version); err != nil {
		return &halt{Refused, err}
	}
	if !i.has(abi.Open) {
		return nil
	}
	address, err := i.text(i.options.Config)
	if err != nil {
		return err
	}
	if err := i.call.Status(i.invoke(abi.Open, uint64(address), uint64(len(i.options.Config)), i.options.Seed)); err != nil {
		return err
	}
	return i.CheckKeys()
}

// instantiate turns a panic of the runtime into an error, as compile does.
func (i *Instance) instantiate() (m api.Module, err error) {
	defer func() {
		if e := recover(); e != nil {
			err = fmt.Errorf("the WebAssembly runtime panicked: %v", e)
		}
	}()
	return i.module.runtime.wazero.InstantiateModule(allocating(i.base, i), i.module.compiled,
		wazero.NewModuleConfig().WithName("").WithStartFunctions())
}

// Close frees the instance's memory. It may be called twice, but not during a call.
func (i *Instance) Close() error {
	if i.closed == nil {
		i.closed = &Error{Hook: i.options.Hook, Batch: -1, Kind: Closed, Cause: fmt.Errorf("Close was called")}
	}
	return i.release()
}

func (i *Instance) release() error {
	guest := i.guest
	if guest == nil {
		return nil
	}
	i.guest, i.memory, i.fuel, i.functions = nil, nil, nil, nil
	return guest.Close(i.base)
}

// Alive reports whether calls can succeed.
func (i *Instance) Alive() bool { return i.closed == nil }

func (i *Instance) has(export string) bool {
	return i.module.compiled.ExportedFunctions()[export] != nil
}

// Call calls a hook for a batch. It returns the hook's result, which is not negative, and sets the shapes of outputs in
// args. It panics if args are invalid. Every error is an *Error.
func (i *Instance) Call(ctx context.Context, hook string, batch int, args ...*Array) (int32, error) {
	if !i.module.hooks[hook] {
		return 0, i.module.CheckHook(hook)
	}
	var result int32
	err := i.guard(ctx, hook, batch, func() (err error) {
		result, err = i.callHook(hook, args)
		return err
	})
	return result, err
}

// guard runs do, which calls the module, as one call, and classifies its error.
func (i *Instance) guard(ctx context.Context, export string, batch int, do func() error) error {
	if !i.busy.CompareAndSwap(false, true) {
		return &Error{Hook: i.options.Hook, Export: export, Batch: batch, Kind: Busy,
			Cause: fmt.Errorf("the instance is in a call already")}
	}
	defer i.busy.Store(false)
	if i.closed != nil {
		return &Error{Hook: i.options.Hook, Export: export, Batch: batch, Kind: Closed, Cause: i.closed}
	}
	i.begin(ctx, export, batch, i.module.limits.Budget)
	i.fuel.Set(0) // discards what the last call did not use
	i.refill()
	return i.finish(do())
}

func (i *Instance) callHook(hook string, args []*Array) (int32, error) {
	if len(args) > maxArrays {
		panic(fmt.Sprintf("wasm: found %d arrays, expected at most %d", len(args), maxArrays))
	}
	if err := i.reserve(slotDescriptors, maxArrays*descriptorSize); err != nil {
		return 0, err
	}
	var sizes [maxArrays]uint32
	for a, arg := range args {
		sizes[a] = arg.bytes()
		if err := i.reserve(slotArrays+a, sizes[a]); err != nil {
			return 0, err
		}
	}
	for a, arg := range args { // after all allocations, since they may move the memory
		if arg.Dir&In != 0 {
			copyPieces(i.view(slotArrays+a, sizes[a]), arg.Data)
		}
		arg.Put(i.view(slotDescriptors, maxArrays*descriptorSize)[a*descriptorSize:], i.buffers[slotArrays+a].address)
	}
	result, err := i.invoke(hook, uint64(i.buffers[slotDescriptors].address), uint64(len(args)))
	if err := i.call.Status(result, err); err != nil {
		return 0, err
	}
	for a, arg := range args {
		d := i.view(slotDescriptors, maxArrays*descriptorSize)[a*descriptorSize:]
		n, err := arg.Returned(d, a, i.buffers[slotArrays+a].address, sizes[a])
		if err != nil {
			return 0, err
		}
		if arg.Dir&Out == 0 {
			continue
		}
		arg.Data = arg.Data[:copyPieces(arg.Data, i.view(slotArrays+a, n))]
	}
	return result, nil
}

// Save returns the module's state, nil if it keeps none.
func (i *Instance) Save(ctx context.Context) ([]byte, error) {
	if !i.module.Stateful() {
		return nil, nil
	}
	var state []byte
	err := i.guard(ctx, abi.Save, -1, func() error {
		length, err := i.invoke(abi.Save, 0, 0)
		if err := i.call.Status(length, err); err != nil {
			return err
		}
		if err := i.reserve(slotText, uint32(length)); err != nil {
			return err
		}
		again, err := i.invoke(abi.Save, uint64(i.buffers[slotText].address), uint64(length))
		if err := i.call.Status(again, err); err != nil {
			return err
		}
		if again != length {
			return halted(Shape, "reported a state of %d bytes, then one of %d", length, again)
		}
		state = make([]byte, length)
		copyPieces(state, i.view(slotText, uint32(length)))
		return nil
	})
	return state, err
}

// Load restores a state that Save returned, of an instance of the same module, configuration and seed.
func (i *Instance) Load(ctx context.Context, state []byte) error {
	if !i.module.Stateful() {
		if len(state) == 0 {
			return nil
		}
		return &Error{Hook: i.options.Hook, Export: abi.Load, Batch: -1, Kind: Refused,
			Cause: fmt.Errorf("found a state of %d bytes, expected none: the module exports no %s", len(state), abi.Load)}
	}
	return i.guard(ctx, abi.Load, -1, func() error {
		address, err := i.text(state)
		if err != nil {
			return err
		}
		return i.call.Status(i.invoke(abi.Load, uint64(address), uint64(len(state))))
	})
}
