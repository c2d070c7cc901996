// Package schedule generates, checks and simulates the order in which the stages of a pipeline work. Nothing here
// touches a device.
//
// A Schedule is an action list for each stage. Actions have a text form: F0.1 is the forward of microbatch 0 of batch
// 1, B2.1:1 the backward of microbatch 2 on chunk 1, U1 the update of batch 1. Two stages of 1F1B with two microbatches
// are
//
//	F0.0 F1.0 B0.0 B1.0 U0
//	F0.0 B0.0 F1.0 B1.0 U0
//
// A schedule passes through the package in this order:
//
//   - Families lists the schedules that exist, and New returns a Generator of one. Read and Parse take a
//     schedule from its text instead, and Repeat makes a Generator that repeats it. Generator.Schedule lists
//     all actions; Generator.Actions yields the actions of one stage one by one, for runs whose lists do not fit into
//     memory.
//   - Communicate inserts sends, receives and the exchange of gradient norms and copied parameters. Computation
//     keeps its order.
//   - Validate checks that a schedule computes what training means and cannot deadlock, and reports what each
//     stage holds.
//   - Simulate runs a schedule at given costs and returns its makespan, its bubble and an event for each
//     action; Closed gives the closed form where the literature has one, and Period the time of a microbatch of 2bw
//     over links. SimulateExchanges does the same for Exchanges of replicas that train on their own.
//     A Network describes stages on several machines. Package draw makes pictures of the result.
//
// A new schedule is a generator function and a row in the table of Families.
package schedule
