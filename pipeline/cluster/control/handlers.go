package control

import (
	"context"
	"encoding/json"
	"fmt"
)

// Handle registers the handler of a kind of request. Requests of such handlers are handled one after the other, in the
// order in which the coordinator sent them.
func (c *Client) Handle(name string, f Handler) { c.register(name, handler{f: f}) }

// HandleConcurrently registers a handler that runs as soon as its request arrives, beside all others: for requests that
// must not wait, such as one that aborts another.
func (c *Client) HandleConcurrently(name string, f Handler) {
	c.register(name, handler{f: f, concurrent: true})
}

func (c *Client) register(name string, h handler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers[name] = h
}

// deliver passes a message on to its handler. It waits for the handlers of earlier ones only if these hold too much
// memory.
func (c *Client) deliver(s *clientSession, m message) {
	switch m.kind {
	case messageCancel:
		s.cancelRequest(m.id)
	case messageRequest:
		ctx := s.newRequest(m.id)
		if h := c.handlerOf(m.name); h.concurrent {
			c.start(func() { c.answer(ctx, s, h.f, m) })
		} else {
			s.mailbox.putBytes(func() { c.answer(ctx, s, h.f, m) }, len(m.data), s.stopped)
		}
	case messageEnd:
		var e Ending
		_ = json.Unmarshal(m.data, &e) // the run has ended in any case
		go c.lost(&EndedError{e})
	default:
		c.o.Note("control: found a message of kind %d, expected a request", m.kind)
	}
}

// start runs a function in a goroutine that Close waits for.
func (c *Client) start(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.loops.Go(f)
	}
}

func (c *Client) handlerOf(name string) handler {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handlers[name]
}

// newRequest returns the context of a request. It ends when the coordinator cancels the request, and with the session.
func (s *clientSession) newRequest(id uint64) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[id] = cancel
	select {
	case <-s.stopped:
		cancel()
	default:
	}
	return ctx
}

func (s *clientSession) cancelRequest(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.requests[id]; cancel != nil {
		cancel()
		delete(s.requests, id)
	}
}

// answer runs the handler of a request and queues what it returns. A request that is canceled before its handler runs
// is answered without it.
func (c *Client) answer(ctx context.Context, s *clientSession, f Handler, m message) {
	defer s.cancelRequest(m.id)
	var reply []byte
	err := ctx.Err()
	switch {
	case err != nil:
	case f == nil:
		err = &RemoteError{Text: fmt.Sprintf("no handler for requests of the name %.40q", m.name), Kind: RemoteNoHandler}
	default:
		reply, err = f(ctx, m.data)
	}
	answer := message{kind: messageReply, id: m.id, data: reply}
	if err != nil {
		answer = message{kind: messageFailure, id: m.id, data: encodeFailure(err)}
	}
	if err := answer.send(s.session); err != nil {
		failure := message{kind: messageFailure, id: m.id, data: encodeFailure(fmt.Errorf("the reply cannot be sent: %w", err))}
		_ = failure.send(s.session) // the session may have ended
	}
}
