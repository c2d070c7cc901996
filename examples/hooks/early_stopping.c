// Ends the run when the validation loss has not become smaller for some evaluations.
//
// Config: patience (3 evaluations), least (0: by how much it must become smaller).
#include "gpupipe.h"

static struct {
  double best;
  int64_t seen, since;
} state;

GP_STATE(state)

static double patience, least;

GP_OPEN() {
  patience = gp_config_number("patience", 3);
  least = gp_config_number("least", 0);
}

GP_ON_METRICS(json) {
  if (!gp_json_find(json, "val_loss")) return 0;
  double loss = gp_json_number(json, "val_loss", 0);
  if (state.seen++ == 0 || loss < state.best - least) {
    state.best = loss;
    state.since = 0;
    return 0;
  }
  return (double)++state.since >= patience;
}
