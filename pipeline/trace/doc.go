// Package trace records the timeline of a run in Chrome's trace event format, which Perfetto and chrome://tracing read,
// and sums up how long each stage of a pipeline computed, waited and transferred.
//
// A [Writer] turns calls into events of the file:
//
//   - Complete: a slice on a track. The run has a track. Each stage has three: its runs and waits, its sends, its
//     receives. Slices of one track do not overlap.
//   - Flow: an arrow from the slice of a send to the slice of its receive.
//   - Counter: a chart, such as the training loss.
//
// [Read] reads slices back, and [Summarize] computes from them what gpupipe trace prints.
package trace
