// Package sweep searches for good values of a config's keys by training many runs.
//
// [Load] reads a [Sweep]: keys with values or ranges, and a search over them. A grid tries all combinations, a random
// search draws some (Bergstra and Bengio 2012), and successive halving trains many for a few steps and the best ones
// further (Jamieson and Talwalkar 2016, arXiv 1502.07943). [runs.Compare] carries them out: it can
// be interrupted at any moment and continues where it was. The [Report] ranks the trials; it is written as tables,
// figures, JSON, and the best config.
//
// [FindRate] is the learning-rate range test (Smith 2015, arXiv 1506.01186): one run whose learning rate grows with
// each step.
package sweep
