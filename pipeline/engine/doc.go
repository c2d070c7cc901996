// Package engine trains a model on a pipeline of devices. The results do not depend on the layout: they have the bits
// of a run on one device, as long as all tensors travel as f32.
//
// New cuts the model by its Layout into ranks, one per stage and replica, builds the programs of each rank and plans
// their memory. Load allocates the memory and compiles the kernels. Train and Evaluate run batches, and ReadWeights,
// WriteWeights, ReadState and WriteState access parameters and the optimizer between them.
//
// Train runs one segment of batches, at whose start and end the pipeline is empty. Each rank has a worker: a goroutine
// that drives the rank's machine of package stage, as its package comment writes out. The worker enqueues the effects
// of the machine on the device and does not wait for it. A second goroutine per rank waits for the operations in
// flight, in order, and reports their ends as events.
//
// A message from one rank to another is a transfer. Its life, from an activation computed on one stage to its use on
// the next:
//
//	created     the sender's machine asks for a Send; a staging buffer is taken, if one is free
//	reading     the sender's device copies the tensors to the staging buffer, or to the host
//	in flight   the copies are done; bytes are encoded; the transfer is posted to the receiver's worker
//	received    the receiver's machine knows the message
//	writing     the machine asks for a Store; bytes are decoded; the receiver's device copies the payload to its tensors
//	completed   the staging buffer is free again
//
// Staging buffers are host memory that both devices import. A channel holds the staging buffers for one kind of message
// between two ranks. Between devices that cannot import memory, payloads are bytes. Payloads in a format other than f32
// are bytes too, see Wire: the sender encodes the tensors, and the receiver decodes them, even if both are on one
// device. The bits of a run then depend on the cut and the formats, and still not on where ranks are.
package engine
