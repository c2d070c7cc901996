//go:build linux

package vulkan

/*
#include "native.h"
*/
import "C"

import (
	"slices"
	"sync"
	"time"
	"unsafe"

	vk "github.com/vulkan-go/vulkan"
)

// queue is the device's queue of submissions, in order: each recorded list of commands begins with a barrier, and
// advances the device's timeline by one when it is done. Methods need the device's locks.
type queue struct {
	d         *Device
	waiters   sync.WaitGroup // in Vulkan's wait, without d.mu
	submitted uint64
	done      uint64 // submissions, as last observed
	batch     batch
	spare     []commands // for batches
	garbage   []garbage
	running   []uint64 // submissions of Run
	moving    []uint64 // submissions of Transfer
}

// garbage is a resource to be freed when a submission is done.
type garbage struct {
	until uint64
	free  func()
}

// commands is a VkCommandBuffer, and the last submission that uses it.
type commands struct {
	handle unsafe.Pointer
	until  uint64
}

// next returns the number of the submission that will contain commands added to the batch now.
func (q *queue) next() uint64 { return q.submitted + 1 }

// submit passes the batch, followed by recorded commands, to the GPU as one submission. If that fails, the device is
// lost: the enqueued work cannot be done any more.
func (q *queue) submit(recorded ...unsafe.Pointer) error {
	list := recorded
	if len(q.batch.commands) > 0 {
		c, err := q.takeCommands()
		if err != nil {
			return q.d.lose(err)
		}
		r := C.gv_record(q.d.handle, c.handle, &q.batch.commands[0], C.size_t(len(q.batch.commands)), 0)
		if err := failure(vk.Result(r)); err != nil {
			return q.d.lose(err)
		}
		q.batch.reset()
		q.spare = append(q.spare, commands{c.handle, q.next()})
		list = append([]unsafe.Pointer{c.handle}, recorded...)
	}
	if len(list) == 0 {
		return nil
	}
	if err := failure(vk.Result(C.gv_submit(q.d.handle, &list[0], C.size_t(len(list)), C.uint64_t(q.next())))); err != nil {
		return q.d.lose(err)
	}
	q.submitted++
	return nil
}

// takeCommands returns a command buffer that no submission uses, or a new one.
func (q *queue) takeCommands() (commands, error) {
	q.look()
	for i, c := range q.spare {
		if c.until <= q.done {
			q.spare = slices.Delete(q.spare, i, i+1)
			return c, nil
		}
	}
	var c commands
	err := failure(vk.Result(C.gv_new_commands(q.d.handle, &c.handle)))
	return c, err
}

// look observes which submissions are done, completes their reads, and frees the buffers that they used.
func (q *queue) look() {
	if q.d.owner.Lost() != nil || q.d.handle == nil {
		return
	}
	var done C.uint64_t
	if err := failure(vk.Result(C.gv_done(q.d.handle, &done))); err != nil {
		_ = q.d.lose(err) // the caller finds it in q.d.owner
		return
	}
	q.done = uint64(done)
	q.d.staging.collect(q.done)
	q.d.timer.collect(q.done)
	n := 0
	for ; n < len(q.garbage) && q.garbage[n].until <= q.done; n++ {
		q.garbage[n].free()
	}
	q.garbage = slices.Delete(q.garbage, 0, n)
	for _, list := range []*[]uint64{&q.running, &q.moving} {
		for len(*list) > 0 && (*list)[0] <= q.done {
			*list = (*list)[1:]
		}
	}
}

// discard frees a resource when everything enqueued so far is done.
func (q *queue) discard(free func()) {
	until := q.submitted
	if len(q.batch.commands) > 0 {
		until = q.next()
	}
	q.garbage = append(q.garbage, garbage{until, free})
	q.look()
}

// until waits for a submission. It releases d.mu while it waits.
func (q *queue) until(value uint64) error {
	if err := q.d.owner.Lost(); err != nil {
		return err
	}
	q.waiters.Add(1)
	q.d.mu.Unlock()
	err := q.await(value)
	q.d.mu.Lock()
	q.waiters.Done()
	if err != nil {
		return q.d.lose(err)
	}
	q.look()
	return q.d.owner.Lost()
}

// await waits for a submission. Callers count as waiters, so that the device is not destroyed meanwhile.
func (q *queue) await(value uint64) error {
	for {
		r := vk.Result(C.gv_wait(q.d.handle, C.uint64_t(value), C.uint64_t(time.Second)))
		if r != vk.Timeout {
			return failure(r)
		}
		q.d.mu.Lock()
		lost := q.d.owner.Lost()
		q.d.mu.Unlock()
		if lost != nil {
			return lost
		}
	}
}

// enqueue submits a section of a program when there is room.
func (q *queue) enqueue(section unsafe.Pointer) error {
	if err := q.room(&q.running, maxRunning); err != nil {
		return err
	}
	if err := q.submit(section); err != nil {
		return err
	}
	q.running = append(q.running, q.submitted)
	return nil
}

// room waits until fewer than most submissions of a list are in progress.
func (q *queue) room(under *[]uint64, most int) error {
	if len(*under) >= most {
		q.look()
	}
	for len(*under) >= most {
		if err := q.until((*under)[0]); err != nil {
			return err
		}
	}
	return nil
}
