// Package base is what backends share, whatever their API: the properties that a device reports, the ownership of
// buffers and programs, the memory budget, and the state of a device: open, lost or closed.
//
// A backend embeds Properties in its device, Buffer in its buffers and Program in its loaded programs, and keeps an
// Owner of them. A method of the device takes the backend's lock and calls Owner.Do. Within it, Owner.Alloc, Load,
// Runnable or Checker come before any call of the API, so every backend refuses the same mistakes with the same errors.
package base

import (
	"sync/atomic"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Properties are what a device reports about itself. Methods are safe for concurrent use.
type Properties struct {
	info            device.Info
	limits          target.Limits
	budget          int64
	buffers, staged atomic.Int64 // bytes
}

// Info returns the adapter's names and kind.
func (p *Properties) Info() device.Info { return p.info }

// Limits returns the limits of every program.
func (p *Properties) Limits() target.Limits { return p.limits }

// Budget returns the bytes of memory that buffers may take, or 0 if there is no bound.
func (p *Properties) Budget() int64 { return p.budget }

// Allocated returns the bytes of live buffers, and of staging memory, whether in use or kept for use.
func (p *Properties) Allocated() (buffers, staging int64) { return p.buffers.Load(), p.staged.Load() }

// Key identifies a compiled shader: shaders of one key share a pipeline.
type Key struct{ Source, Access string }

// KeyOf returns the key of a shader.
func KeyOf(s *device.Shader) Key { return Key{s.Source, AccessKey(s.Bindings)} }

// AccessKey returns the accesses of bindings as a string, to key a map by them.
func AccessKey(bindings []device.Access) string {
	b := make([]byte, len(bindings))
	for i, a := range bindings {
		b[i] = byte(a)
	}
	return string(b)
}

// Label returns the label of a buffer, which may be nil.
func Label(b device.Buffer) string {
	if b == nil {
		return ""
	}
	return b.Label()
}
