package runs

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/internal/version"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// summarySteps is the number of steps from one loss of a summary to the next.
const summarySteps = 100

// lossRecord is a line of the metrics.jsonl of a summary.
type lossRecord struct {
	Step int     `json:"step"`
	Loss float64 `json:"loss"` // nats per token

	ValLoss *float64 `json:"val_loss,omitempty"`
}

// summary is the folder of a run's summary. It is named as the run's folder, and holds the same files, shorter.
func (s *Set[R]) summary(r R) string { return filepath.Join(s.Summaries, filepath.Base(s.Folder(r))) }

// summarize writes the summary of a run that has ended: its config, its losses every summarySteps steps and at
// evaluations, and last, since it says that the run has ended, its outcome with the version of the program.
func (s *Set[R]) summarize(r R, c config.Config, o Outcome) error {
	dir := s.summary(r)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return usererror.New(err)
	}
	records, err := metrics.Read(filepath.Join(s.Folder(r), "metrics.jsonl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var losses bytes.Buffer
	for i, record := range records {
		loss, ok := record.Values[lossName]
		valLoss, evaluated := record.Values["val_loss"]
		if last := i == len(records)-1; !ok || !metrics.Finite(loss) || record.Step%summarySteps != 0 && !evaluated && !last {
			continue
		}
		line := lossRecord{Step: record.Step, Loss: loss}
		if evaluated {
			line.ValLoss = Number(valLoss)
		}
		if err := json.NewEncoder(&losses).Encode(line); err != nil {
			return err
		}
	}
	out := o.json()
	out.Version = version.String()
	c.Run.StartedIn = "" // others read it
	if err := errors.Join(
		WriteFile(filepath.Join(dir, configFile), c.YAML()),
		WriteFile(filepath.Join(dir, "metrics.jsonl"), losses.Bytes()),
		s.File.writePins(s.Summaries)); err != nil {
		return err
	}
	return WriteJSON(filepath.Join(dir, outcomeFile), out)
}
