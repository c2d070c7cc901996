// Package study compares optimizers with and without the one-step delay of a pipeline without flushes (arXiv
// 2606.30634), of all microbatches or of a share of them, and replicas that seldom talk with replicas that always do
// and with one alone.
//
// [Load] reads a [Study]: optimizers, modes (a delay and its correction) and seeds. [runs.Compare] first trains every
// optimizer at all its learning rates on the tuning seeds, then trains each mode at the chosen rates over all seeds.
// Each run has a folder, and a study that was interrupted continues there. The [Report] has the losses, their gaps to
// the mode without delay with standard errors, and findings in words; it is written as tables, figures and JSON.
package study
