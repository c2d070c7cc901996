package transport

import (
	"errors"
	"sync"
)

// inboxBytes bounds the messages that wait for Receive. A reader waits while there are more.
const inboxBytes = 16 << 20

// inbox assembles the messages of a class and hands them to Receive.
type inbox struct {
	mu              sync.Mutex
	connection      int // whose fragments are accepted; noConnection: none
	fragments       assembler
	queue           []Message
	queued          int64 // bytes of memory
	bytes, messages int64
	wake            chan struct{} // holds a token after a message was queued
	room            chan struct{} // closed when a message is taken; nil while no reader waits
}

func newInbox(class Class, limit int64) *inbox {
	return &inbox{connection: noConnection, fragments: assembler{class: class, limit: limit}, wake: make(chan struct{}, 1)}
}

// noConnection is the number of no connection.
const noConnection = -1

var errReplaced = errors.New("the connection has ended")

// resume hands the inbox to a connection. Fragments of earlier connections are refused from now on, since the peer
// learns the number of those that were accepted.
func (i *inbox) resume(connection int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.connection = connection
}

// accept takes a fragment that a connection has brought.
func (i *inbox) accept(connection int, r fragmentReader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if connection != i.connection {
		return errReplaced
	}
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

// clear drops all messages, whole or in part, and takes the inbox from its connection.
func (i *inbox) clear() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.connection, i.queue, i.queued = noConnection, nil, 0
	i.fragments.message, i.fragments.sizes = Message{}, nil
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
