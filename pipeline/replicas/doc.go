// Package replicas trains replicas of a model that seldom talk: package optim/outer writes down what they exchange, and
// when it counts.
//
// Each replica trains on its own, with its own optimizer, on its share of every batch. schedule.Exchanges says after
// which steps a fragment is sent and when its exchange lands. At these steps a replica's pipeline is empty, and it
// exchanges:
//
//	read     weights of the fragment's parameters, from the replica's devices
//	send     outer.Send on the first device of the replica
//	step     outer.Add, Step and Apply, by the Owner
//	land     outer.Land on the replica, at once or some steps later; its weights are written to the devices
//
// Replica is the replica's part of that, Owner the other: it has the outer weights, their momentum and the base. All of
// them are in host memory, as residues are.
//
// In one process a Pipeline runs all replicas up to the next exchange, one engine.Engine each. On several machines each
// replica is a Course in the processes of its members, and exchanges travel as messages; package coordinator has the
// Owner. The bits are the same.
//
// A replica whose change has not arrived when it lands waits (Course.await). After each ChangeTimeout it calls Overdue:
// its member requests the change again, unless it is on its way. If a replica does not send its move and shows no
// progress for pipeline.watchdog, the coordinator goes on without it (Replicas.loseHung).
//
// Evaluations and checkpoints have the outer weights, with all exchanges that were sent so far, also those that have
// not landed. With a delay an exchange reads and moves the newest weights only, as the update of the step before does:
// stale microbatches of the next batch lack both.
package replicas
