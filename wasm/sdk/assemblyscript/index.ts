// Hooks for gpupipe in AssemblyScript, version 1 of the ABI (docs/HOOKS.md). Export functions of these names from the file that is
// compiled; build.mjs writes the rest.
//
//	buildLoss(logits: Value, targets: Value): Value     f32 [N, V] and u32 [N] give f32 [N], of which the mean is taken, or one f32
//	buildLossOfInputs(): Value                          the same, which asks for its inputs itself: others are not computed
//	buildModel(tokens: Value): Value                    u32 [B, T] give the logits, f32 [B, T, V]
//	mapDocument(text: string): void                     calls keep(text) for what takes the document's place
//	mapBatch(batch: Batch): void                        changes what is in a batch of the training
//	tokenWeights(batch: Batch): void                    changes batch.weights
//	learningRate(step: i64, steps: i64, base: f64): f64 gives the factor on all learning rates; base is that of the config's schedule
//	onMetrics(metrics: Json): bool                      returns whether the run is to end
//	lossScalars(step: i64, steps: i64, scalars: Slice<f32>): void   stores them in the order in which the loss first asked for them
//	lossGrad(sample: Sample): void                      the loss in plain AssemblyScript, for gpupipe hook check
//
// and, beside them, open(): void, which runs before the hook is first called, and save(): StaticArray<u8> and load(state: Slice<u8>): void,
// what checkpoints keep: with them a module is stateful, and one instance of it sees everything, in order.
export { log, fail, abort, seed, start } from "./host";
export { config, Json } from "./config";
export { Slice, Arrays, Batch, Sample, keep, put } from "./arrays";
export { Value, where, concat } from "./graph";
export { unit, parameter, normal, ones, zeros, attention } from "./model";
