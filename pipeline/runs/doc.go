// Package runs carries out many training runs that belong together, such as the runs of a sweep or of a study.
//
// A [Set] describes the runs: their configs, their folders, and which of them are needed. The latter may depend on the
// outcomes of others. A [Comparison] is a set with a report: a sweep, or a study. [Compare] trains the needed runs,
// several at a time and on several devices, keeps the outcome of each in its folder, and writes the report. The next
// Compare of the same set trains the runs that are missing, from the newest checkpoints.
//
// The package also has what such comparisons share: a common config with assignments to its keys, the files of a
// report, tables and estimates.
package runs
