package trace

// Category is the kind of an event. Viewers filter by it. Chrome colors by it where it knows the color's name; Perfetto
// colors by the event's name without its digits, so all forwards look alike there too.
type Category string

const (
	Forward      Category = "forward"
	Backward     Category = "backward"       // whole, or the input or weight gradient alone
	Evaluate     Category = "evaluate"       // a forward without a backward
	GradientNorm Category = "gradient norms" // the squared norms of a stage's gradients
	Update       Category = "update"         // the optimizer's step
	Wait         Category = "wait"           // a stage has nothing to compute yet
	Send         Category = "send"           // from a stage's device to the host, for another stage
	Receive      Category = "receive"        // from the host to a stage's device
	Transfer     Category = "transfer"       // an arrow from a Send to its Receive
	Data         Category = "data"           // a stage waits for a batch that hooks have not finished
	Run          Category = "run"            // of the whole run: training, evaluations, checkpoints
	Clock        Category = "clock"          // the clock of a member, and how far its events may be off
	Exchange     Category = "exchange"       // of a fragment, between replicas that train on their own
	Network      Category = "network"        // a link between two members as it was measured before the run, or Settings
)

// legacyGradientNorm is the name of GradientNorm in files of earlier versions.
const legacyGradientNorm Category = "vote"

// Computes reports whether events of the category occupy a device.
func (c Category) Computes() bool {
	switch c {
	case Forward, Backward, Evaluate, GradientNorm, Update:
		return true
	}
	return false
}

// OfRank reports whether events of the category are on the tracks of a rank.
func (c Category) OfRank() bool { return c.Computes() || c == Wait || c == Send || c == Receive }

// color is one of the color names that Chrome's trace viewer reserves.
func (c Category) color() string {
	switch c {
	case Forward:
		return "good" // green
	case Backward:
		return "rail_response" // blue
	case Evaluate:
		return "rail_animation" // violet
	case GradientNorm:
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

// SendTrack and ReceiveTrack name the tracks of a stage's transfers, beside the stage's own track. Events of one track
// do not overlap.
func SendTrack(stage string) string    { return stage + sendSuffix }
func ReceiveTrack(stage string) string { return stage + receiveSuffix }

const sendSuffix, receiveSuffix = " send", " receive"

// ClockTrack is the track of a member's Clock events. Each covers the time since the one before. Its arguments:
// "offset_micros", the member's clock minus the run's clock, and "error_micros": the true time of an event of the
// member is at most this far from the time in the trace. Between the events of two members the errors add up.
func ClockTrack(member string) string { return clockPrefix + member }

const clockPrefix = "clock of "

// NetworkTrack is the track of Network events. Their arguments: "source" and "target", the members; "latency_micros" of
// a transfer without content, "bytes_per_second". The event that describes the Settings of a run has their arguments
// instead.
const NetworkTrack = "network"

// ExchangeTrack is the track of Exchange. Arguments of its events: the "step" after which the fragment was sent, the
// step at which its exchange "lands", and the "bytes" of a message.
const ExchangeTrack = "exchanges"

// ExchangeWait begins the name of the Wait events in which a stage waited for an exchange; the name of its fragment
// follows.
const ExchangeWait = "wait for the exchange of "

// DataTrack is the track of Data.
const DataTrack = "data"

// RunTrack is the track of the whole run. The other constants name its events.
const (
	RunTrack = "run"
	// TrainEvent is the training between two moments at which all stages are idle. Its arguments: the batches "from" to
	// "to" − 1, and "staleness", the mean age of their gradients in steps.
	TrainEvent    = "train"
	EvaluateEvent = "evaluate"
	SaveEvent     = "save"
	TuneEvent     = "time kernels"
	RestartEvent  = "restart" // from the loss of a device (argument "fault") to the batch at which training continues ("step")
)

// LossCounter and LossUnit name the chart of the training loss.
const LossCounter, LossUnit = "loss", "nats per token"
