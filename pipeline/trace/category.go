package trace

// Category says what an event is. Viewers filter by it and, where they know the names of Chrome's colours, colour by it;
// Perfetto colours by the name without its digits, so that all forwards look alike there too.
type Category string

const (
	Forward  Category = "forward"
	Backward Category = "backward" // whole, or either half
	Evaluate Category = "evaluate" // a forward without a backward to come
	Vote     Category = "vote"     // the squared norms of a stage's gradients
	Update   Category = "update"   // the optimizer's step
	Wait     Category = "wait"     // nothing to compute yet
	Send     Category = "send"     // to the host, on the way to another stage
	Receive  Category = "receive"  // from the host
	Data     Category = "data"     // a batch that is waited for is being made
	Run      Category = "run"      // of the whole run: training, evaluations, checkpoints
)

// Computes tells the categories that occupy a device.
func (c Category) Computes() bool {
	switch c {
	case Forward, Backward, Evaluate, Vote, Update:
		return true
	}
	return false
}

// colour is one of the names that Chrome's trace viewer reserves.
func (c Category) colour() string {
	switch c {
	case Forward:
		return "good" // green
	case Backward:
		return "rail_response" // blue
	case Evaluate:
		return "rail_animation" // violet
	case Vote:
		return "yellow"
	case Update:
		return "bad" // orange
	case Wait:
		return "grey"
	case Send:
		return "olive"
	case Receive:
		return "thread_state_runnable" // light blue
	}
	return ""
}

// The rows of a stage's transfers, beside its own row. On each row one event begins after the other has ended.
func SendTrack(stage string) string    { return stage + sendSuffix }
func ReceiveTrack(stage string) string { return stage + receiveSuffix }

const sendSuffix, receiveSuffix = " send", " receive"

// DataTrack is the row of Data.
const DataTrack = "data"

// RunTrack is the row of the whole run. The names of its events:
const (
	RunTrack      = "run"
	TrainEvent    = "train" // batches from its argument "from" to before "to", between two moments at which all stages are idle
	EvaluateEvent = "evaluate"
	SaveEvent     = "save"
	RestartEvent  = "restart" // of devices: from the loss of one, its argument "fault", to the batch that training goes on from, "step"
)
