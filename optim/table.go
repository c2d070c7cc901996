package optim

import (
	"reflect"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Kind describes an optimizer: a row of the table.
type Kind struct {
	Name  string
	About string           // its full name and source
	Takes string           // the parameters that it takes; AdamW takes the others
	New   func() Algorithm // its config, with the defaults
}

// Optimizers is the table of optimizers, the default one first. Names, help texts, validation, studies and
// documentation are made from it.
func Optimizers() []Kind {
	const all, hidden = "all parameters", "matrices of the layers"
	return []Kind{
		{"muon", "Muon: orthogonalized momentum (Jordan et al., 2024)", hidden, func() Algorithm { return DefaultMuon() }},
		{"adamw", "AdamW (arXiv:1711.05101)", all, func() Algorithm { return DefaultAdamW() }},
		{"sgd", "SGD with momentum", all, func() Algorithm { return DefaultSGD() }},
		{"normuon", "NorMuon: Muon with normalized rows (arXiv:2510.05491)", hidden, func() Algorithm { return DefaultNorMuon() }},
		{"soap", "SOAP: AdamW in Shampoo's eigenbasis (arXiv:2409.11321)", hidden, func() Algorithm { return DefaultSOAP() }},
		{"lion", "Lion (arXiv:2302.06675)", all, func() Algorithm { return DefaultLion() }},
		{"adan", "Adan (arXiv:2208.06677)", all, func() Algorithm { return DefaultAdan() }},
		{"mars", "MARS-AdamW (arXiv:2411.10438)", "all matrices", func() Algorithm { return DefaultMARS() }},
	}
}

// CorrectionKind describes a correction of delayed gradients: a row of the table.
type CorrectionKind struct {
	Name  string
	About string
	New   func() Correction // its config, with the defaults
}

// CorrectionNone names the row of Corrections that corrects nothing.
const CorrectionNone = "none"

// CorrectionErrorFeedback names the row of Corrections with ErrorFeedback.
const CorrectionErrorFeedback = "error_feedback"

// Corrections is the table of corrections, the default one first.
func Corrections() []CorrectionKind {
	return []CorrectionKind{
		{CorrectionNone, "no correction", func() Correction { return &NoCorrection{} }},
		{CorrectionErrorFeedback, "error feedback on the update (arXiv:2606.30634)", func() Correction { return &ErrorFeedback{} }},
		{"weight_prediction", "gradients at predicted weights (SpecTrain, arXiv:1809.02839)",
			func() Correction { return &WeightPrediction{} }},
		{"dc_asgd", "delay-compensated gradients (DC-ASGD, arXiv:1609.08326)", func() Correction { return DefaultDCASGD() }},
	}
}

// ScheduleKind describes a learning-rate schedule: a row of the table.
type ScheduleKind struct {
	Name  string
	About string
	after func(s Schedule, step int) float64 // the factor after the warm-up
}

// Schedules is the table of learning-rate schedules, the default one first.
func Schedules() []ScheduleKind {
	return []ScheduleKind{
		{"cosine", "half a cosine down to min_ratio", Schedule.cosine},
		{"linear", "a straight line down to min_ratio", Schedule.linear},
		{"wsd", "constant, then a straight line down to min_ratio over the last steps", Schedule.wsd},
		{"constant", "constant", func(Schedule, int) float64 { return 1 }},
	}
}

// OptimizerNames lists the names of the table Optimizers.
func OptimizerNames() []string {
	return column(Optimizers(), func(k Kind) string { return k.Name })
}

// CorrectionNames lists the names of the table Corrections.
func CorrectionNames() []string {
	return column(Corrections(), func(k CorrectionKind) string { return k.Name })
}

// ScheduleNames lists the names of the table Schedules.
func ScheduleNames() []string {
	return column(Schedules(), func(k ScheduleKind) string { return k.Name })
}

func column[T any](rows []T, cell func(T) string) (cells []string) {
	for _, r := range rows {
		cells = append(cells, cell(r))
	}
	return cells
}

// NewAlgorithm returns the config of the optimizer of a name, with its defaults. The error is a *FieldError of "name".
func NewAlgorithm(name string) (Algorithm, error) {
	i := slices.Index(OptimizerNames(), name)
	if i < 0 {
		return nil, fielderror.New("name", name, "one of %s", strings.Join(OptimizerNames(), ", "))
	}
	return Optimizers()[i].New(), nil
}

// Name is the name of an optimizer in the table.
func Name(a Algorithm) string {
	i := slices.IndexFunc(Optimizers(), func(k Kind) bool { return sameType(k.New(), a) })
	return Optimizers()[i].Name
}

// CorrectionName is the name of a correction in the table.
func CorrectionName(c Correction) string {
	i := slices.IndexFunc(Corrections(), func(k CorrectionKind) bool { return sameType(k.New(), c) })
	return Corrections()[i].Name
}

func sameType(a, b any) bool { return reflect.TypeOf(a) == reflect.TypeOf(b) }
