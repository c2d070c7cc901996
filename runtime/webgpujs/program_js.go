package webgpujs

import (
	"cmp"
	"fmt"
	"syscall/js"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/base"
)

const (
	stageCompute = 4       // GPUShaderStage.COMPUTE
	maxRunning   = 8       // submissions of Run in progress: how far the host may run ahead
	scratchSize  = 1 << 20 // bytes
)

type loaded struct {
	base.Program
	d        *Device
	commands []command
}

// command is a dispatch if it has a pipeline, else a copy.
type command struct {
	pipeline, group  js.Value
	groups           [3]int
	from, to         js.Value
	fromAt, toAt, of int64 // bytes
}

// Load compiles and binds p.
func (d *Device) Load(p *device.Program) (device.Loaded, error) {
	l := &loaded{Program: d.owner.NewProgram(p), d: d}
	return d.owner.Load(d.do, l, p, func() error { return l.build(p) })
}

func (l *loaded) build(p *device.Program) error {
	if err := l.d.compile(p.Shaders); err != nil {
		return err
	}
	err := l.d.scoped(func() { l.bind(p) })()
	if err != nil {
		l.d.scratch = js.Value{} // the error may be its own
	}
	return err
}

// bind makes the commands. All shaders are compiled already.
func (l *loaded) bind(p *device.Program) {
	for _, c := range p.Commands {
		if c.Shader == device.Copy {
			l.copy(c.Args[0], c.Args[1])
			continue
		}
		s := &p.Shaders[c.Shader]
		entries := make([]any, len(c.Args))
		for i, r := range c.Args {
			entries[i] = object{"binding": i, "resource": object{"buffer": r.Buffer.(*buffer).gpu, "offset": r.Offset, "size": r.Size}}
		}
		group := l.d.gpu.Call("createBindGroup", object{"label": s.Label, "layout": l.d.layout(s.Bindings), "entries": entries})
		l.commands = append(l.commands, command{pipeline: l.d.pipelines[base.KeyOf(s)], group: group, groups: c.Groups})
	}
}

// copy appends a copy. WebGPU refuses copies within one buffer, so these go through scratch memory.
func (l *loaded) copy(src, dst device.Range) {
	from, to := src.Buffer.(*buffer), dst.Buffer.(*buffer)
	if from != to {
		l.commands = append(l.commands, command{from: from.gpu, fromAt: src.Offset, to: to.gpu, toAt: dst.Offset, of: src.Size})
		return
	}
	if !l.d.scratch.Truthy() {
		l.d.scratch = l.d.gpu.Call("createBuffer", object{"label": "scratch", "size": scratchSize, "usage": usageCopySrc | usageCopyDst})
	}
	for at := int64(0); at < src.Size; at += scratchSize {
		n := min(src.Size-at, scratchSize)
		l.commands = append(l.commands, command{from: from.gpu, fromAt: src.Offset + at, to: l.d.scratch, of: n},
			command{from: l.d.scratch, to: to.gpu, toAt: dst.Offset + at, of: n})
	}
}

// compile makes the missing pipelines, all at once, because browsers compile on several threads.
func (d *Device) compile(shaders []device.Shader) error {
	modules, pipelines := map[*device.Shader]js.Value{}, map[*device.Shader]js.Value{}
	asked := map[base.Key]bool{}
	failed := d.scoped(func() {
		for i := range shaders {
			s := &shaders[i]
			if key := base.KeyOf(s); !d.pipelines[key].Truthy() && !asked[key] {
				asked[key] = true
				modules[s] = d.gpu.Call("createShaderModule", object{"label": s.Label, "code": s.Source})
				layout := d.gpu.Call("createPipelineLayout", object{"bindGroupLayouts": []any{d.layout(s.Bindings)}})
				pipelines[s] = d.gpu.Call("createComputePipelineAsync", object{"label": s.Label, "layout": layout,
					"compute": object{"module": modules[s], "entryPoint": "main"}})
			}
		}
	})
	var first error
	for i := range shaders {
		s := &shaders[i]
		if _, ok := pipelines[s]; !ok {
			continue
		}
		p, err := await(pipelines[s])
		if err == nil {
			d.pipelines[base.KeyOf(s)] = p
		} else if first == nil {
			first = d.owner.Named("compile", s.Label, device.Invalid("%s", cmp.Or(complaint(modules[s]), err.Error())))
		}
	}
	if err := failed(); first == nil {
		return err
	}
	return first
}

// complaint returns the first error of the compiler for a shader, "" if there is none.
func complaint(module js.Value) string {
	info, err := await(module.Call("getCompilationInfo"))
	if err != nil {
		return ""
	}
	messages := info.Get("messages")
	for i := range messages.Length() {
		if m := messages.Index(i); m.Get("type").String() == "error" {
			return fmt.Sprintf("line %d: %s", m.Get("lineNum").Int(), m.Get("message").String())
		}
	}
	return ""
}

// layout returns the layout of bind groups with these accesses, which it makes once.
func (d *Device) layout(bindings []device.Access) js.Value {
	key := base.AccessKey(bindings)
	if l, ok := d.layouts[key]; ok {
		return l
	}
	entries := make([]any, len(bindings))
	for i, a := range bindings {
		kind := "storage"
		if a == device.ReadOnly {
			kind = "read-only-storage"
		}
		entries[i] = object{"binding": i, "visibility": stageCompute, "buffer": object{"type": kind}}
	}
	l := d.gpu.Call("createBindGroupLayout", object{"entries": entries})
	d.layouts[key] = l
	return l
}

// Run enqueues a program. It waits while 8 submissions are in progress.
func (d *Device) Run(p device.Loaded) error {
	return d.owner.Run(d.do, p, func(l *loaded) error {
		d.running <- struct{}{}
		d.submitted(l.submit)
		finished := func() { <-d.running }
		then(d.queue.Call("onSubmittedWorkDone"), func(js.Value) { finished() }, func(error) { finished() })
		return nil
	})
}

// submit encodes the commands. Consecutive dispatches share a pass.
func (l *loaded) submit() {
	e := l.d.gpu.Call("createCommandEncoder", object{"label": l.Label()})
	var pass js.Value
	end := func() {
		if pass.Truthy() {
			pass.Call("end")
			pass = js.Value{}
		}
	}
	for i := range l.commands {
		c := &l.commands[i]
		if !c.pipeline.Truthy() {
			end()
			e.Call("copyBufferToBuffer", c.from, c.fromAt, c.to, c.toAt, c.of)
			continue
		}
		if !pass.Truthy() {
			pass = e.Call("beginComputePass")
		}
		pass.Call("setPipeline", c.pipeline)
		pass.Call("setBindGroup", 0, c.group)
		pass.Call("dispatchWorkgroups", c.groups[0], c.groups[1], c.groups[2])
	}
	end()
	l.d.queue.Call("submit", []any{e.Call("finish")})
}

// Release drops the bindings. The compiled shaders are kept for later programs.
func (l *loaded) Release() {
	l.d.owner.UnloadWith(l.d.do, l, func() { l.commands = nil })
}
