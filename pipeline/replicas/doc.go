// Package replicas trains replicas of a model that seldom talk, in one process: package optim/outer writes down what they
// exchange, and when it counts.
//
// Each replica is an engine.Engine of its own, with its own optimizer, and takes its share of every batch.
// schedule.Exchanges says after which steps a fragment is sent and when its exchange lands. Pipeline.Train runs all replicas
// up to the next of these steps, where their pipelines are empty, and exchanges:
//
//	read     weights of the fragment's parameters, from each replica's devices
//	send     outer.Send on the first device of each replica
//	step     outer.Add, Step and Apply on the first device of the first replica
//	land     outer.Land on each replica, at once or some steps later; its weights are written to the devices
//
// The outer weights, their momentum, the base and the residues are in host memory. Evaluations and checkpoints have the
// outer weights, with all exchanges that were sent so far, also those that have not landed.
//
// With a delay an exchange reads and moves the newest weights only, as the update of the step before does: stale
// microbatches of the next batch lack both.
package replicas
