package train

import "errors"

// ErrDiverged is wrapped by the error of a run whose loss, gradient or validation loss is no longer finite.
var ErrDiverged = errors.New("training stopped")
