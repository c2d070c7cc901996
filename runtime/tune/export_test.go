package tune

// FirstTiming is how long timing a kernel is expected to take before one was timed.
const FirstTiming = firstTiming
