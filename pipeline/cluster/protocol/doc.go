// Package protocol is what the coordinator of a run and its members say to each other.
//
// The coordinator makes requests of a member, answered one by one: to measure its devices, to plan its ranks, to load
// them, to release them. Everything that happens while the ranks work travels as a Message of package transport, whose
// header this package encodes. Each kind of message has a type for its header:
//
//	coordinator → member   Write, Begin, Batch, Grant, End, Read, Record
//	member → coordinator   Result, Ended, Tensor, Fault, Events, LinkReport
//	member → member        Stage: a message of package stage; Filler
//
// Work is divided into segments, numbered from 1 in an epoch. Begin announces one, after as many Writes as it states.
// A member's ranks begin the batches that are granted. A Grant follows the data of its batch. End closes a segment
// before the batches that Begin named; Ended answers each segment.
package protocol
