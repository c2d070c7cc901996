package control

import (
	"sync"
)

// maxStuck is the number of renewals without progress after which pieces are sent again.
const maxStuck = 6

// stream is one end of a session's two streams: what both the coordinator and a member do. A goroutine of its own sends
// pieces and acknowledgments.
type stream struct {
	session uint64
	publish func(frame) // sends a frame, or loses it if there is no connection

	lock     sync.Mutex // of what follows
	instance uint64     // of the coordinator; 0: not known yet
	sender   sender
	receiver receiver
	open     bool // the other side has agreed on where to go on
	ackDue   bool
	resend   bool // the acknowledgment asks for the pieces that follow it
	stuck    int  // renewals since the last progress

	wake     chan struct{}
	stopped  chan struct{}
	stopping sync.Once
	done     chan struct{}
}

func newStream(session, instance uint64, publish func(frame)) *stream {
	s := &stream{session: session, instance: instance, publish: publish,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

// stop ends the goroutine of the stream without waiting for it.
func (s *stream) stop() { s.stopping.Do(func() { close(s.stopped) }) }

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// frame makes a frame of this session that acknowledges what came in.
func (s *stream) frame(kind frameKind, body []byte) frame {
	s.lock.Lock()
	defer s.lock.Unlock()
	return frame{kind: kind, session: s.session, instance: s.instance, acknowledged: s.receiver.acknowledged(), body: body}
}

// send queues a message.
func (s *stream) send(m message) error {
	s.lock.Lock()
	err := s.sender.add(m)
	s.lock.Unlock()
	s.signal()
	return err
}

func (s *stream) run() {
	defer close(s.done)
	for {
		select {
		case <-s.wake:
		case <-s.stopped:
			return
		}
		for {
			f, ok := s.nextFrame()
			if !ok {
				break
			}
			s.publish(f)
		}
	}
}

// nextFrame returns the next piece, or an acknowledgment if one is due and no piece carries it.
func (s *stream) nextFrame() (frame, bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	select {
	case <-s.stopped:
		return frame{}, false
	default:
	}
	if !s.open {
		return frame{}, false
	}
	f := frame{kind: frameAck, session: s.session, instance: s.instance, acknowledged: s.receiver.acknowledged()}
	if s.resend {
		s.resend, s.ackDue = false, false
		f.kind = frameResend
		return f, true
	}
	if p, ok := s.sender.next(); ok {
		s.ackDue = false
		f.kind, f.sequence, f.body = framePiece, p.sequence, p.body
		return f, true
	}
	if !s.ackDue {
		return frame{}, false
	}
	s.ackDue = false
	return f, true
}

// take accepts a piece and returns the message that it completes.
func (s *stream) take(f frame) (m message, complete bool, err error) {
	s.lock.Lock()
	m, complete, missing, err := s.receiver.take(f.sequence, f.body)
	s.ackDue = true
	s.resend = s.resend || missing
	s.lock.Unlock()
	s.signal()
	return m, complete, err
}

// handled says that a message needs no memory any more.
func (s *stream) handled(m message) {
	s.lock.Lock()
	if s.receiver.handled(m) {
		s.ackDue = true
	}
	s.lock.Unlock()
	s.signal()
}

// acknowledge notes what the other side has received.
func (s *stream) acknowledge(sequence uint64, resend bool) {
	s.lock.Lock()
	grown := s.sender.acknowledge(sequence)
	if resend {
		s.sender.rewind()
	}
	s.lock.Unlock()
	if grown || resend {
		s.signal()
	}
}

// acknowledgeRenewal is acknowledge for frames that come each second or so. If several in a row acknowledge nothing new
// while pieces wait for it, the pieces were lost, and go out again.
func (s *stream) acknowledgeRenewal(sequence uint64) {
	s.lock.Lock()
	if s.sender.idle() || s.sender.acknowledge(sequence) {
		s.stuck = 0
	} else {
		s.stuck++
	}
	again := s.stuck >= maxStuck
	if again {
		s.stuck = 0
		s.sender.rewind()
	}
	s.lock.Unlock()
	s.signal()
}

// setInstance notes which process of the coordinator the session is with.
func (s *stream) setInstance(instance uint64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.instance = instance
}

func (s *stream) knownInstance() uint64 {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.instance
}

// resume sends everything again that the other side has not received, and goes on from there.
func (s *stream) resume(acknowledged uint64) {
	s.lock.Lock()
	s.open, s.ackDue = true, true
	s.sender.acknowledge(acknowledged)
	s.sender.rewind()
	s.lock.Unlock()
	s.signal()
}

// pause stops sending until resume.
func (s *stream) pause() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.open = false
}

func (s *stream) idle() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.sender.idle()
}

// mailbox runs functions in the order in which they came, in one goroutine.
type mailbox struct {
	mu    sync.Mutex
	tasks []func()
	wake  chan struct{}
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

func (b *mailbox) put(task func()) {
	b.mu.Lock()
	b.tasks = append(b.tasks, task)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
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
		task, ok := b.next()
		if ok {
			task()
			continue
		}
		select {
		case <-b.wake:
		case <-stopped:
			return
		}
	}
}

func (b *mailbox) next() (task func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.tasks) == 0 {
		return nil, false
	}
	task = b.tasks[0]
	b.tasks[0] = nil
	b.tasks = b.tasks[1:]
	return task, true
}
