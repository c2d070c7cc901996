package sidecar

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// hello is the first frame of a connection. The file of the shared memory comes with it.
type hello struct {
	token    string
	device   string
	up, down int64 // bytes of the two rings, which follow each other in the shared memory
	silence  time.Duration
}

const magic = "gpupipe worker"

func (h *hello) code(c *coder) {
	op, name, v := opHello, magic, version
	if c.u8((*byte)(&op)).text(&name); op != opHello || name != magic {
		c.b, c.err = nil, errors.New("the client is not a gpupipe host")
	}
	if c.int(&v); c.err == nil && v != version {
		c.fail(fmt.Errorf("found a host of version %d, expected %d", v, version))
	}
	c.text(&h.token).text(&h.device).size(&h.up).size(&h.down).size((*int64)(&h.silence))
}

// command is what a host requests of a worker.
type command struct {
	op        kind
	id        uint64 // of the buffer, program or call
	buffer    uint64 // opTimed: the program
	offset, n int64  // in the buffer, in bytes
	at        int64  // in a ring; opTaken: the position up to which the host has read
	label     string // opAlloc
	program   *device.Program

	bytes int64 // of its frame
}

// handle represents a buffer in a program that is sent.
type handle uint64

func (h handle) Label() string { return "" }
func (h handle) Size() int64   { return 0 }
func (h handle) Release()      {}

func (c *command) code(x *coder) {
	x.u8((*byte)(&c.op)).u64(&c.id)
	switch c.op {
	case opAlloc:
		x.text(&c.label).i64(&c.n)
	case opLoad:
		if x.reads {
			c.program = &device.Program{}
		}
		x.program(c.program)
	case opWrite:
		x.u64(&c.buffer).i64(&c.offset).size(&c.n).size(&c.at)
	case opRead:
		x.u64(&c.buffer).i64(&c.offset).i64(&c.n)
	case opTimed:
		x.u64(&c.buffer)
	case opTaken:
		x.size(&c.at)
	case opFree, opUnload, opRun, opSync, opClose:
	default:
		x.fail(fmt.Errorf("unknown command %d", c.op))
	}
}

// The minimum bytes of a shader, a command and an argument.
const (
	shaderBytes  = 4 + 4 + 4 + 3*4 + 4 + 1
	commandBytes = 4 + 3*4 + 4
	rangeBytes   = 3 * 8
)

// program is a program. Its buffers are handles or have ids; those that are read are handles.
func (x *coder) program(p *device.Program) {
	x.text(&p.Label)
	list(x, shaderBytes, &p.Shaders, func(s *device.Shader) {
		x.text(&s.Label).text(&s.Source)
		list(x, 1, &s.Bindings, func(a *device.Access) { x.u8((*byte)(a)) })
		x.groups(&s.Workgroup).int(&s.WorkgroupMemory).flag(&s.Inside)
	})
	list(x, commandBytes, &p.Commands, func(c *device.Command) {
		x.int(&c.Shader).groups(&c.Groups)
		list(x, rangeBytes, &c.Args, func(r *device.Range) {
			id := idOf(r.Buffer)
			if x.u64(&id).i64(&r.Offset).i64(&r.Size); x.reads {
				r.Buffer = handle(id)
			}
		})
	})
}

func (x *coder) groups(g *[3]int) *coder { return x.int(&g[0]).int(&g[1]).int(&g[2]) }

func idOf(b device.Buffer) uint64 {
	switch b := b.(type) {
	case handle:
		return uint64(b)
	case interface{ number() uint64 }:
		return b.number()
	}
	return 0
}
