// Package model turns the description of a language model into graphs: training programs, evaluation, prediction,
// decoding.
//
// A [Model] is a chain of units: an embedding, layers, a head. [Config] describes a model of the Llama family: RMSNorm,
// rotary positions, grouped queries, SwiGLU. [Written] is a model that comes as a graph, from a hook say. [InPrecision]
// makes a model whose matrix products take 16-bit floats.
//
// [Model.Stage] builds the programs of a chunk of consecutive units, in these steps:
//
//  1. A span builds the forward pass of the units, the loss if the chunk has the last unit, and the gradients by
//     package autodiff: one graph of both passes.
//  2. A tied model is built as if its head had a matrix of its own, so that each share of the gradient is a variable.
//     Then the readers of that matrix are redirected to the embedding.
//  3. graph.Expand replaces the ops that are compositions of others.
//  4. Package split cuts the graph into the forward pass and the backward pass, and the backward pass into the
//     gradients of activations and the gradients of weights. The values that cross a cut become variables, the stash.
//
// Chunks exchange f32 [B, T, d_model] by the variables act/in, act/out, grad/in and grad/out: see [Stage]. Scopes
// separate layers and passes, and no kernel spans two scopes, so a model has the same kernels, and the same bits,
// wherever it is cut.
//
// A family of models is one file, as llama.go is, and fields of [Config]. Tests of this package fail if a field is not
// validated, is not kept by config.json, or changes nothing that is computed, and if a parameter is listed but not
// trained.
package model
