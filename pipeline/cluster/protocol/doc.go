// Package protocol is what the coordinator of a run and its members say to each other.
//
// The coordinator makes requests of a member, answered one by one:
//
//	Measure, Connect, Probe   what its devices and its links are capable of
//	Plan, Load, Release       the ranks of an epoch: their programs, their memory, their end
//	Lend, Return              of a replica that trains on its own: it evaluates other weights, and has its own again
//
// Everything that happens while the ranks work travels as a Message of package transport, whose header this package
// encodes. Each kind of message has a type for its header:
//
//	coordinator → member   Write, Begin, Batch, Grant, End, Read, Record
//	member → coordinator   Result, Ended, Tensor, Fault, Events, LinkReport
//	member → member        Stage: a message of package stage; Filler
//
// and, with replicas that train on their own,
//
//	member → coordinator   Move, Missing
//	coordinator → member   Change, Neighbors, Relay, Piece
//	member → member        Copy, within a replica; Piece, to another replica
//
// Work is divided into segments, numbered from 1 in an epoch. Begin announces one, after as many Writes as it states.
// A member's ranks begin the batches that are granted. A Grant follows the data of its batch. End closes a segment
// before the batches that Begin named; Ended answers each segment.
package protocol
