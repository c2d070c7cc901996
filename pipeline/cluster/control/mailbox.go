package control

import "sync"

// mailbox runs functions in the order in which they came, in one goroutine.
type mailbox struct {
	mu      sync.Mutex
	tasks   []task
	bytes   int           // of tasks that have not run
	wake    chan struct{} // has room for one: there are tasks
	emptied chan struct{} // has room for one: there is room
}

// task is a function with the memory that it holds.
type task struct {
	run   func()
	bytes int
}

// maxWaiting is how many bytes of tasks wait in a mailbox with a limit.
const maxWaiting = maxQueue / 2

func newMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), emptied: make(chan struct{}, 1)}
}

func (b *mailbox) put(run func()) { b.add(task{run: run}) }

// putBytes is put for a task that holds memory. It waits for room until stopped is closed.
func (b *mailbox) putBytes(run func(), bytes int, stopped <-chan struct{}) {
	for b.waiting() > maxWaiting {
		select {
		case <-b.emptied:
		case <-stopped:
			return
		}
	}
	b.add(task{run, bytes})
}

func (b *mailbox) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

func (b *mailbox) add(t task) {
	b.mu.Lock()
	b.tasks = append(b.tasks, t)
	b.bytes += t.bytes
	b.mu.Unlock()
	signal(b.wake)
}

// signal fills a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run runs tasks until stopped is closed, and drops those that are left then.
func (b *mailbox) run(stopped <-chan struct{}) {
	for {
		select {
		case <-stopped:
			return
		default:
		}
		t, ok := b.next()
		if ok {
			t.run()
			b.done(t)
			continue
		}
		select {
		case <-b.wake:
		case <-stopped:
			return
		}
	}
}

func (b *mailbox) next() (t task, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.tasks) == 0 {
		return t, false
	}
	t = b.tasks[0]
	b.tasks[0] = task{}
	b.tasks = b.tasks[1:]
	return t, true
}

// done gives the memory of a task back.
func (b *mailbox) done(t task) {
	b.mu.Lock()
	b.bytes -= t.bytes
	b.mu.Unlock()
	signal(b.emptied)
}
