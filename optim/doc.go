// Package optim builds the update of a training step as compute graphs, so that it runs as shaders on any device: the
// optimizers, clipping by the global norm of the gradient, the refusal of updates that are not finite, loss scaling,
// and the corrections of gradients that are one step old.
//
// # Tables
//
// Optimizers, Corrections and Schedules are the tables of all algorithms. A row has a name, a description and a
// constructor of a config with its defaults. The Fields of a config describe its hyperparameters. Config files, help
// texts, studies and documentation are made from these tables. To add an optimizer, write a file with its config, which
// implements Algorithm, and its Rule, and add a row to Optimizers. The package's tests then ask for a reference
// implementation.
//
// # The way of a gradient
//
// New assigns the parameters of a model to rules: parameters that Config.Algorithm takes to its rule, the others to
// AdamW. A balancing bias has a rule of its own. The parameters may be spread over several pipeline stages. Each stage
// owns a Shard and runs two programs for each batch:
//
//	NormSquares   gradients, loss -> LocalVariable: the sum of squares of each of the shard's gradients
//	              (the caller all-gathers the local variables into NormSquaresVariable: see Shard.Positions)
//	Update        NormSquaresVariable, HyperparametersInput, gradients, weights, state -> new weights and state
//
// Update computes the global norm in one sum of a fixed order, so all stages decide alike whether to apply the batch.
// For each layer it clips the gradients, applies Correction.Gradient, Rule.Update and Correction.Step, adds weight
// decay, and assigns weights and state. If the batch is refused, weights and state keep their bits.
// With Config.Moments of bf16 most state is rounded stochastically when it is assigned.
//
// Values that change from step to step, such as the learning rate, are computed on the host in float64.
// Optimizer.Hyperparameters returns them with their names. They reach the device as one small vector.
package optim
