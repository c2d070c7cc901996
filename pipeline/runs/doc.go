// Package runs carries out many training runs that belong together, such as the runs of a sweep or of a study.
//
// A [Set] describes the runs: their configs, their folders, and which of them are needed. The latter may depend on the
// outcomes of others. [Execute] trains the needed runs, several at a time and on several devices, and keeps the outcome
// of each in its folder. The next Execute of the same set trains only what is missing, from the newest checkpoints.
//
// The package also has what the files of such sets share: a common config with assignments to its keys, and the reports'
// tables and estimates.
package runs
