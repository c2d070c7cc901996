package main

import (
	"context"
	"errors"
	"strings"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// ending returns the report to the members of a run on why gpupipe host ends.
func ending(err error) control.Ending {
	switch {
	case err == nil:
		return control.Ending{Outcome: control.Finished}
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return control.Ending{Outcome: control.Stopped}
	case errors.Is(err, train.ErrDiverged):
		return control.Ending{Outcome: control.Diverged, Text: oneLine(err)}
	case usererror.Is(err) && !diskFull(err):
		return control.Ending{Outcome: control.Refused, Text: oneLine(err)}
	}
	return control.Ending{Outcome: control.Failed, Text: oneLine(err)}
}

// oneLine is the message of an error whose parts are on lines of their own.
func oneLine(err error) string { return strings.ReplaceAll(message(err), "\n", "; ") }

// ended is how gpupipe join ends when its run does: with the exit code of gpupipe host.
func ended(a *app, err error) error {
	var e *control.EndedError
	if !errors.As(err, &e) {
		return err
	}
	switch e.Outcome {
	case control.Diverged, control.Failed:
		return e
	case control.Refused:
		return usererror.New(e)
	}
	a.note("%v", e)
	if e.Outcome == control.Stopped {
		return errInterrupted
	}
	return nil
}
