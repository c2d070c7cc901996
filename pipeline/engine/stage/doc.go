// Package stage is the state machine of one rank of a pipeline: events in, effects out. It follows the rank's action
// list, waits for the messages that actions need, and assigns buffers to roles. It is deterministic and pure: no
// devices, no goroutines, no time.
//
// A driver owns a Machine and the device of the rank. It carries out the effects of Next in order, and reports back
// with Received and Finished when a message arrives from another rank or the device finishes a run. This is the loop:
//
//	m, err := stage.New(config)
//	...
//	for !m.Done() {
//		if batch, wants := m.WantsBatch(); wants && available(batch) {
//			m.Allow(batch)
//		}
//		effects := m.Next()
//		for _, e := range effects {
//			switch e.Kind {
//			case stage.Feed: // write the microbatch's tokens and targets into slot e.Place.Slot
//			case stage.Store: // write the payload of e.Message to e.Place
//			case stage.Run: // enqueue the program of e.Action on the buffers of e.Place; when it ends: events <- e.Action
//			case stage.Send: // enqueue a read of the payload of e.Message at e.Place; when it ends: send it to rank e.To
//			case stage.Ready: // batch e.Action.Batch is complete on this rank
//			}
//		}
//		if len(effects) > 0 {
//			continue
//		}
//		select {
//		case message := <-inbox: // its payload is kept until the Store effect
//			err = m.Received(message)
//		case action := <-events:
//			err = m.Finished(action)
//		}
//		...
//	}
//
// Package engine is such a driver, with a goroutine per rank; the Example of this package is one for a single rank
// without a device.
//
// Effects take place in the order in which Next returns them, as in one queue: a Send reads the results of the Runs
// before it, a Run reads what the Stores before it wrote. So a buffer or a slot changes its owner when an effect is
// returned, not when it is done.
//
// Let x_t be the weights with the updates of all batches before t, g_t the gradient of batch t, and u_t the update
// computed from it: x_{t+1} = x_t − u_t. With delay 0, all forwards and backwards of batch t read x_t, and x_{t+1}
// replaces x_t in its buffer. With delay 1, the forwards and backwards of the first Config.Stale microbatches read
// x_{t−1} and the others x_t. If all are stale, this is PipeDream-2BW (Narayanan et al., arXiv 2006.09503). With delay
// 1, x_{t+1} replaces g_t. The buffer of x_{t−1} is free after the last stale backward of batch t and takes g_{t+1}.
// Three buffers are enough, however long the update waits. Its deadline is the first forward that reads x_{t+1}: the
// forward of the first microbatch of batch t + 1 that is not stale or, if all are stale, of batch t + 2.
package stage
