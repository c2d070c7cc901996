package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"
)

// task is a request whose sequences are submitted.
type task struct {
	server   *Server
	settings settings
	outputs  []*output
	head     answer
	opening  bool                                                    // streams begin with a part that has no text, as chats do
	choice   func(o *output, p piece, reason *string, index int) any // as its API reports a part, or the whole, of a choice
}

func (t *task) respond(w http.ResponseWriter) {
	if t.settings.Stream {
		t.stream(w)
		return
	}
	total := &usage{}
	for i, o := range t.outputs {
		var all piece
		err := o.each(func(p piece) error {
			all.text += p.text
			all.events = append(all.events, p.events...)
			return nil
		})
		if err != nil {
			t.fail(w, err)
			return
		}
		reason := o.reason()
		t.head.Choices = append(t.head.Choices, t.choice(o, all, &reason, i))
		total.add(t.prompt(i), o.made)
	}
	t.head.Usage = total
	writeJSON(w, http.StatusOK, t.head)
}

// prompt is the number of the prompt's tokens of an output, 0 if an earlier choice has counted them.
func (t *task) prompt(i int) int {
	if i%t.settings.choices() != 0 {
		return 0
	}
	return t.outputs[i].q.prompt
}

// fail reports an error, unless the client has disconnected.
func (t *task) fail(w http.ResponseWriter, err error) {
	if !errors.Is(err, context.Canceled) {
		writeError(w, err)
	}
}

// each calls f with the parts of an answer, until its end.
func (o *output) each(f func(p piece) error) error {
	for {
		events, more, err := o.q.next()
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := o.add(e); err != nil {
				return err
			}
			if o.stopped {
				break
			}
		}
		if !more || o.stopped {
			break
		}
		p, err := o.take(false)
		if err == nil && (p.text != "" || len(p.events) > 0) {
			err = f(p)
		}
		if err != nil {
			return err
		}
	}
	o.q.cancel() // a stop string ends the text before its sequence ends
	p, err := o.take(true)
	if err != nil {
		return err
	}
	return f(p)
}

// stream sends the parts of the choices as server-sent events, as they come.
func (t *task) stream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	events := &eventWriter{w: w, flush: http.NewResponseController(w)}
	defer events.keepAlive(t.server.o.KeepAlive)()
	var reading sync.WaitGroup
	failed := make([]error, len(t.outputs))
	for i, o := range t.outputs {
		reading.Go(func() {
			send := func(p piece, reason *string) error {
				part := t.head
				part.Choices, part.Usage = []any{t.choice(o, p, reason, i)}, t.partUsage(i)
				return events.send(part)
			}
			if failed[i] = t.open(o, send); failed[i] != nil {
				return
			}
			if failed[i] = o.each(func(p piece) error { return send(p, nil) }); failed[i] == nil {
				reason := o.reason()
				failed[i] = send(piece{}, &reason)
			}
		})
	}
	reading.Wait()
	t.endStream(events, errors.Join(failed...))
}

// open sends the first part of a choice where it has no text.
func (t *task) open(o *output, send func(p piece, reason *string) error) error {
	if !t.opening {
		return nil
	}
	o.begun = true
	return send(piece{first: true}, nil)
}

// partUsage is the usage in a part of a stream: the usage of choice i so far if the client asks for it in every part,
// null if it asks for it at the end, else nil.
func (t *task) partUsage(i int) any {
	switch o := t.settings.StreamOptions; {
	case o == nil:
	case o.Continuous:
		u := &usage{}
		u.add(t.outputs[i].q.prompt, t.outputs[i].made)
		return u
	case o.IncludeUsage:
		return json.RawMessage("null")
	}
	return nil
}

func (t *task) endStream(events *eventWriter, err error) {
	if err != nil {
		_ = events.send(map[string]any{"error": asAPI(err)}) // the client may be gone
		return
	}
	if o := t.settings.StreamOptions; o != nil && o.IncludeUsage {
		last := t.head
		total := &usage{}
		for i, o := range t.outputs {
			total.add(t.prompt(i), o.made)
		}
		last.Usage = total
		_ = events.send(last)
	}
	_ = events.write("[DONE]")
}

// eventWriter writes server-sent events, each at once.
type eventWriter struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	flush *http.ResponseController
}

func (e *eventWriter) send(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.write(string(text))
}

func (e *eventWriter) write(data string) error { return e.raw("data: " + data + "\n\n") }

func (e *eventWriter) raw(text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.flush.Flush()
}

// keepAlive writes comments while nothing else is to be written, so that proxies and clients keep the connection. The
// result ends it.
func (e *eventWriter) keepAlive(every time.Duration) (end func()) {
	ticker, done := time.NewTicker(every), make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			select {
			case <-ticker.C:
				_ = e.raw(": keep-alive\n\n") // the client may be gone
			case <-done:
				return
			}
		}
	})
	return func() {
		ticker.Stop()
		close(done)
		writing.Wait()
	}
}
