package transport

import "sync"

// inboxBytes bounds the messages that wait for Receive. A reader waits while there are more.
const inboxBytes = 16 << 20

// inbox assembles the messages of a class and hands them to Receive.
type inbox struct {
	mu              sync.Mutex
	fragments       assembler
	queue           []Message
	queued          int64 // bytes of memory
	bytes, messages int64
	wake            chan struct{} // holds a token after a message was queued
	room            chan struct{} // closed when a message is taken; nil while no reader waits
}

func newInbox(class Class, limit int64) *inbox {
	return &inbox{fragments: assembler{class: class, limit: limit}, wake: make(chan struct{}, 1)}
}

// accept takes a fragment of n bytes.
func (i *inbox) accept(r fragmentReader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := r.Remaining()
	m, complete, err := i.fragments.accept(r)
	if err != nil {
		return err
	}
	i.bytes += int64(n)
	if complete {
		i.queue = append(i.queue, m)
		i.queued += m.footprint()
		i.messages++
		signal(i.wake)
	}
	return nil
}

// accepted is the number of fragments that were accepted.
func (i *inbox) accepted() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fragments.next
}

// waitForRoom returns when another fragment may be read, or false when done is closed.
func (i *inbox) waitForRoom(done <-chan struct{}) bool {
	for {
		i.mu.Lock()
		full := i.queued >= inboxBytes
		if full && i.room == nil {
			i.room = make(chan struct{})
		}
		room := i.room
		i.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-room:
		case <-done:
			return false
		}
	}
}

func (i *inbox) take() (Message, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) == 0 {
		return Message{}, false
	}
	m := i.queue[0]
	i.queue[0] = Message{}
	i.queue = i.queue[1:]
	i.queued -= m.footprint()
	if i.room != nil {
		close(i.room)
		i.room = nil
	}
	return m, true
}

// deliver calls receive for each message until done is closed.
func (i *inbox) deliver(done <-chan struct{}, receive func(Message)) {
	for !isClosed(done) {
		if m, ok := i.take(); ok {
			receive(m)
			continue
		}
		select {
		case <-i.wake:
		case <-done:
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// forget begins the statistics anew.
func (i *inbox) forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.bytes, i.messages = 0, 0
}

func (i *inbox) statistics() (bytes, messages int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.bytes, i.messages
}
