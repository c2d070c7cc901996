// Package watch shows runs on a page in a browser while they train, or afterwards.
//
// It reads the files of run folders and nothing else, so it also shows finished runs and folders that were copied from
// another machine. Data flow one way:
//
//	folder    finds runs below a folder; all access goes through os.Root, so no link leads out of it
//	lines     follows one file: complete new lines, from the beginning again if the file was replaced
//	series    the measurements of a run by step, from metrics.jsonl and system.jsonl; thinned for the page
//	timeline  the newest events of trace.json, for the drawing of the pipeline
//	experts   the newest loads of experts.jsonl
//	run       the files of one run together: its series, timeline, experts, events and samples
//	Watcher   polls the runs that pages show, and wakes up the streams
//	stream    sends one page what it does not have yet, as server-sent events
//
// The page is static: HTML, CSS and JavaScript modules, with uPlot for the charts. It keeps no state that the stream
// would not send again.
package watch
