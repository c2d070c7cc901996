//go:build linux && cgo

package cpu

import (
	"sync"
)

const (
	maxPrograms  = 8  // in the queue: how far the caller may run ahead
	maxTransfers = 64 // in the queue
)

// queue runs jobs in order, on a goroutine. It stays on no thread: a locked one takes twice as long to wake up.
type queue struct {
	ended chan struct{}

	mu        sync.Mutex
	changed   *sync.Cond // for mu: a job was added, or is done
	jobs      []job
	count     [2]int // jobs of each bounded kind
	added     uint64
	completed uint64
	closing   bool
}

type job struct {
	kind jobKind
	do   func()
}

type jobKind int

// Kinds of jobs. The queue holds at most maxPrograms and maxTransfers of the first two.
const (
	program jobKind = iota
	transfer
	unbounded
)

func newQueue() *queue {
	q := &queue{ended: make(chan struct{})}
	q.changed = sync.NewCond(&q.mu)
	go q.own()
	return q
}

func (q *queue) own() {
	defer close(q.ended)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.jobs) == 0 {
			if q.closing {
				return
			}
			q.changed.Wait()
		}
		next := q.jobs[0]
		q.jobs[0] = job{}
		q.jobs = q.jobs[1:]
		q.mu.Unlock()
		next.do()
		q.mu.Lock()
		q.completed++
		if next.kind < unbounded {
			q.count[next.kind]--
		}
		q.changed.Broadcast()
	}
}

// add appends a job when there is room for it, and returns its number.
func (q *queue) add(kind jobKind, do func()) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if kind < unbounded {
		most := [...]int{program: maxPrograms, transfer: maxTransfers}[kind]
		for q.count[kind] >= most {
			q.changed.Wait()
		}
		q.count[kind]++
	}
	q.jobs = append(q.jobs, job{kind, do})
	q.added++
	q.changed.Broadcast()
	return q.added
}

// last returns the number of the job that was added last.
func (q *queue) last() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.added
}

// wait waits until the job of that number, and so all before it, are done.
func (q *queue) wait(number uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.completed < number {
		q.changed.Wait()
	}
}

// close waits for all jobs and ends the goroutine. No job may be added after it.
func (q *queue) close() {
	q.mu.Lock()
	q.closing = true
	q.changed.Broadcast()
	q.mu.Unlock()
	<-q.ended
}
