package webgpujs

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall/js"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

// Options of a device.
type Options struct {
	Label        string
	MemoryBudget int64 // bytes of buffers; 0: no bound
}

// Device implements device.Device. Its mutex orders the enqueued operations. State that callbacks change needs no lock:
// there is one thread, and goroutines are switched only where they wait.
type Device struct {
	base.Properties
	gpu   js.Value
	queue js.Value

	mu        sync.Mutex
	owner     *base.Owner[*buffer, *loaded]
	deferred  error // an error of enqueued work, for Sync
	pipelines map[base.Key]js.Value
	layouts   map[string]js.Value // of bind groups, by one byte a binding
	scratch   js.Value            // for copies within one buffer
	uploads   uploads
	reads     []*pending    // in progress
	running   chan struct{} // a slot for each submission of Run in progress
}

// uploads is the data in transit to the GPU.
type uploads struct {
	bytes   js.Value // a Uint8Array
	written int64    // bytes since the last wait for the queue
}

// ErrNoWebGPU is wrapped by Open's error in a browser without WebGPU, or without an adapter for it.
var ErrNoWebGPU = errors.New("this browser has no WebGPU")

// limitNames are WebGPU's names of the limits that Open requests as large as the adapter has them.
var limitNames = []string{"maxStorageBuffersPerShaderStage", "maxStorageBufferBindingSize", "maxBufferSize",
	"minStorageBufferOffsetAlignment",
	"maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY",
	"maxComputeWorkgroupSizeZ", "maxComputeWorkgroupsPerDimension"}

// Open opens the adapter that the browser selects.
func Open(o Options) (*Device, error) {
	adapter, err := adapter()
	if err != nil {
		return nil, err
	}
	info, wanted := describe(adapter), object{}
	for _, name := range limitNames {
		wanted[name] = adapter.Get("limits").Get(name)
	}
	gpu, err := await(adapter.Call("requestDevice", object{"label": o.Label, "requiredLimits": wanted}))
	if err != nil {
		return nil, &device.Error{Op: "open", Object: info.Adapter, Device: info.Name, Cause: err}
	}
	d := &Device{gpu: gpu, queue: gpu.Get("queue"), pipelines: map[base.Key]js.Value{}, layouts: map[string]js.Value{},
		running: make(chan struct{}, maxRunning)}
	d.owner = base.NewOwner[*buffer, *loaded](&d.Properties)
	d.owner.Describe(info, limitsOf(gpu.Get("limits"), info.Kind), o.MemoryBudget)
	then(gpu.Get("lost"), func(why js.Value) {
		if why.Get("reason").String() != "destroyed" {
			d.owner.Lose(fmt.Errorf("%w: %s", device.ErrLost, why.Get("message").String()))
		}
	}, func(error) {})
	return d, nil
}

func adapter() (js.Value, error) {
	gpu := js.Global().Get("navigator").Get("gpu")
	if !gpu.Truthy() {
		return js.Value{}, fmt.Errorf("%w: it is too old, or the page comes neither over https nor from this machine", ErrNoWebGPU)
	}
	a, err := await(gpu.Call("requestAdapter", object{"powerPreference": "high-performance"}))
	if err != nil {
		return js.Value{}, fmt.Errorf("%w: %w", ErrNoWebGPU, err)
	}
	if !a.Truthy() {
		return js.Value{}, fmt.Errorf("%w: it offers no adapter (no GPU that it trusts, or WebGPU is switched off)", ErrNoWebGPU)
	}
	return a, nil
}

func describe(adapter js.Value) device.Info {
	i := adapter.Get("info")
	if !i.Truthy() { // in browsers of before 2024
		i = js.Global().Get("Object").New()
	}
	text := func(key string) string {
		if v := i.Get(key); v.Type() == js.TypeString {
			return v.String()
		}
		return ""
	}
	info := device.Info{Name: "webgpu:0", Adapter: text("description"), Vendor: text("vendor"), API: "browser", Kind: device.Virtual}
	if info.Adapter == "" {
		info.Adapter = cmp.Or(strings.TrimSpace(info.Vendor+" "+text("architecture")), "unnamed adapter")
	}
	if i.Get("isFallbackAdapter").Truthy() || text("architecture") == "swiftshader" {
		info.Kind = device.Software
	}
	return info
}

func limitsOf(l js.Value, kind device.Kind) target.Limits {
	n := func(name string) int { return int(min(l.Get(name).Float(), 1<<52)) }
	size := func(name string) int64 { return int64(n(name)) &^ 3 }
	return target.Limits{
		MaxBindings: n("maxStorageBuffersPerShaderStage"), MaxBindingSize: size("maxStorageBufferBindingSize"),
		MaxBufferSize:   size("maxBufferSize"),
		OffsetAlignment: size("minStorageBufferOffsetAlignment"), MaxWorkgroupMemory: n("maxComputeWorkgroupStorageSize"),
		MaxInvocations:       n("maxComputeInvocationsPerWorkgroup"),
		MaxWorkgroupSize:     [3]int{n("maxComputeWorkgroupSizeX"), n("maxComputeWorkgroupSizeY"), n("maxComputeWorkgroupSizeZ")},
		MaxDispatchDimension: n("maxComputeWorkgroupsPerDimension"),
		Software:             kind == device.Software,
	}
}

// do runs f with the mutex held and names its error.
func (d *Device) do(op, object string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.owner.Do(op, object, func() (err error) {
		if thrown := attempt(func() { err = f() }); thrown != nil {
			return thrown
		}
		return err
	})
}

// scoped runs f within error scopes. failed waits for the scopes and returns their error. Error scopes are a stack, so
// f must not wait.
func (d *Device) scoped(f func()) (failed func() error) {
	kinds := []string{"out-of-memory", "validation", "internal"}
	for _, k := range kinds {
		d.gpu.Call("pushErrorScope", k)
	}
	thrown := attempt(f)
	var scopes []any
	for range kinds {
		scopes = append(scopes, d.gpu.Call("popErrorScope"))
	}
	all := js.Global().Get("Promise").Call("all", scopes)
	return func() error {
		found, err := await(all)
		if thrown != nil || err != nil {
			return cmp.Or(thrown, err)
		}
		for i := range kinds {
			if e := found.Index(i); e.Truthy() {
				return fault(e)
			}
		}
		return nil
	}
}

// fault returns a GPUError as a Go error.
func fault(e js.Value) error {
	message := strings.Join(strings.Fields(e.Get("message").String()), " ")
	switch e.Get("constructor").Get("name").String() {
	case "GPUOutOfMemoryError":
		return fmt.Errorf("%w: %s", device.ErrOutOfMemory, message)
	case "GPUValidationError":
		return device.Invalid("%s", message)
	}
	return errors.New(message)
}

// submitted runs f, which submits work. Sync returns the errors of that work.
func (d *Device) submitted(f func()) {
	failed := d.scoped(f)
	go func() {
		if err := failed(); err != nil {
			d.deferred = errors.Join(d.deferred, err)
		}
	}()
}

// Sync waits until all enqueued work is done.
func (d *Device) Sync() error {
	var done js.Value
	var failed func() error
	err := d.do("sync", "", func() error {
		failed = d.scoped(func() { done = d.queue.Call("onSubmittedWorkDone") })
		return nil
	})
	if err != nil {
		return err
	}
	_, err = await(done)
	return d.do("sync", "", func() error {
		err := errors.Join(err, failed(), d.deferred) // its scopes end after the scopes of all work before it
		d.deferred = nil
		return err
	})
}

// Close waits for enqueued work and releases everything. Closing twice is allowed.
func (d *Device) Close() error {
	err := d.Sync()
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(d.owner.Usable(), device.ErrClosed) {
		return nil
	}
	for len(d.reads) > 0 {
		<-d.reads[0].Done()
	}
	d.owner.Close()
	d.owner.FreeAll(func(*loaded) {}, (*buffer).free)
	d.gpu.Call("destroy")
	if errors.Is(err, device.ErrLost) {
		return nil
	}
	return err
}
