package wasm

import (
	"context"
	"sync"
)

// Pool opens instances of a module as they are needed, up to a number, and replaces instances that an error closed. The
// results of a stateless module do not depend on the instance. Several goroutines may use a pool.
type Pool struct {
	module  *Module
	options Options
	tokens  chan struct{}
	mu      sync.Mutex
	idle    []*Instance
	closed  bool
}

// NewPool returns a pool of at most n instances. It opens none.
func NewPool(m *Module, n int, o Options) *Pool {
	return &Pool{module: m, options: o, tokens: make(chan struct{}, max(1, n))}
}

// Do calls f with an instance that no other goroutine uses. It waits until one is free. It returns the error of f, of
// Open or of the context.
func (p *Pool) Do(ctx context.Context, f func(*Instance) error) error {
	select {
	case p.tokens <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.tokens }()
	i, err := p.take(ctx)
	if err != nil {
		return err
	}
	defer p.give(i)
	return f(i)
}

func (p *Pool) take(ctx context.Context) (*Instance, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		i := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return i, nil
	}
	p.mu.Unlock()
	return p.module.Open(ctx, p.options)
}

func (p *Pool) give(i *Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !i.Alive() {
		i.Close()
		return
	}
	p.idle = append(p.idle, i)
}

// Close closes the instances. Those in use are closed when their function returns.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, i := range p.idle {
		i.Close()
	}
	p.idle = nil
}
