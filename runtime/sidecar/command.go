package sidecar

import (
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

func (h *hello) append(b []byte) []byte {
	b = appendInt(appendText(append(b, byte(opHello)), magic), version)
	b = appendText(appendText(b, h.token), h.device)
	return appendI64(appendI64(appendI64(b, h.up), h.down), int64(h.silence))
}

func decodeHello(b []byte) (*hello, error) {
	d := decoder{b: b}
	if kind(d.u8()) != opHello || d.text() != magic {
		return nil, fmt.Errorf("the client is not a gpupipe host")
	}
	if v := d.int(); d.err == nil && v != version {
		return nil, fmt.Errorf("found a host of version %d, expected %d", v, version)
	}
	h := &hello{token: d.text(), device: d.text(), up: d.size(), down: d.size(), silence: time.Duration(d.size())}
	return h, d.end()
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

func (c *command) append(b []byte) []byte {
	b = appendU64(append(b, byte(c.op)), c.id)
	switch c.op {
	case opAlloc:
		b = appendI64(appendText(b, c.label), c.n)
	case opLoad:
		b = appendProgram(b, c.program)
	case opWrite:
		b = appendI64(appendI64(appendI64(appendU64(b, c.buffer), c.offset), c.n), c.at)
	case opRead:
		b = appendI64(appendI64(appendU64(b, c.buffer), c.offset), c.n)
	case opTimed:
		b = appendU64(b, c.buffer)
	case opTaken:
		b = appendI64(b, c.at)
	}
	return b
}

func decodeCommand(b []byte) (*command, error) {
	d := decoder{b: b}
	c := &command{op: kind(d.u8()), id: d.u64()}
	switch c.op {
	case opAlloc:
		c.label, c.n = d.text(), d.i64()
	case opLoad:
		c.program = d.program()
	case opWrite:
		c.buffer, c.offset, c.n, c.at = d.u64(), d.i64(), d.size(), d.size()
	case opRead:
		c.buffer, c.offset, c.n = d.u64(), d.i64(), d.i64()
	case opTimed:
		c.buffer = d.u64()
	case opTaken:
		c.at = d.size()
	case opFree, opUnload, opRun, opSync, opClose:
	default:
		return nil, fmt.Errorf("unknown command %d", c.op)
	}
	return c, d.end()
}

// The minimum bytes of a shader, a command and an argument.
const (
	shaderBytes  = 4 + 4 + 4 + 3*4 + 4 + 1
	commandBytes = 4 + 3*4 + 4
	rangeBytes   = 3 * 8
)

// appendProgram adds a program whose buffers are handles or have ids.
func appendProgram(b []byte, p *device.Program) []byte {
	b = appendInt(appendText(b, p.Label), len(p.Shaders))
	for i := range p.Shaders {
		s := &p.Shaders[i]
		b = appendInt(appendText(appendText(b, s.Label), s.Source), len(s.Bindings))
		for _, a := range s.Bindings {
			b = append(b, byte(a))
		}
		b = appendFlag(appendInt(appendGroups(b, s.Workgroup), s.WorkgroupMemory), s.Inside)
	}
	b = appendInt(b, len(p.Commands))
	for i := range p.Commands {
		c := &p.Commands[i]
		b = appendInt(appendGroups(appendInt(b, c.Shader), c.Groups), len(c.Args))
		for _, r := range c.Args {
			b = appendI64(appendI64(appendU64(b, idOf(r.Buffer)), r.Offset), r.Size)
		}
	}
	return b
}

func idOf(b device.Buffer) uint64 {
	switch b := b.(type) {
	case handle:
		return uint64(b)
	case interface{ number() uint64 }:
		return b.number()
	}
	return 0
}

func appendGroups(b []byte, g [3]int) []byte {
	return appendInt(appendInt(appendInt(b, g[0]), g[1]), g[2])
}

// program reads a program; its buffers are handles.
func (d *decoder) program() *device.Program {
	p := &device.Program{Label: d.text()}
	for range d.count(shaderBytes) {
		s := device.Shader{Label: d.text(), Source: d.text()}
		for range d.count(1) {
			s.Bindings = append(s.Bindings, device.Access(d.u8()))
		}
		s.Workgroup, s.WorkgroupMemory, s.Inside = d.groups(), d.int(), d.flag()
		p.Shaders = append(p.Shaders, s)
	}
	for range d.count(commandBytes) {
		c := device.Command{Shader: d.int(), Groups: d.groups()}
		n := d.count(rangeBytes)
		if n > 0 {
			c.Args = make([]device.Range, n)
		}
		for i := range c.Args {
			c.Args[i] = device.Range{Buffer: handle(d.u64()), Offset: d.i64(), Size: d.i64()}
		}
		p.Commands = append(p.Commands, c)
	}
	return p
}

func (d *decoder) groups() [3]int { return [3]int{d.int(), d.int(), d.int()} }
