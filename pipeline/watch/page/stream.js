// Server-sent events over fetch, which sends a header with the token of a server that other machines reach.

const retryMillis = 1000;

// Browsers allow six connections to a server. So a hidden page has none, of those that are visible a few keep their
// stream open, and others ask again and again.
const places = 4, pollMillis = 2000;

// The token is the fragment of the page's address, which browsers do not send.
const token = location.hash.slice(1);

// open reads a stream and calls take with the kind and the data of each event. It connects again when the connection
// breaks. The result closes the stream.
export function open(address, take, status) {
  const abort = new AbortController();
  read(address, take, status, abort.signal);
  return () => abort.abort();
}

async function read(address, take, status, signal) {
  while (!signal.aborted) {
    await visible(signal);
    const release = await place(), attempt = new AbortController(), end = () => { if (signal.aborted || document.hidden) attempt.abort(); };
    const leave = () => attempt.abort();
    signal.addEventListener("abort", leave);
    document.addEventListener("visibilitychange", end);
    addEventListener("pagehide", leave);
    end();
    let wait = release ? retryMillis : pollMillis;
    try {
      const response = await fetch(release ? address : `${address}&once=1`, { signal: attempt.signal, headers: token ? { Authorization: `Bearer ${token}` } : {} });
      if (!response.ok) throw new Error(await response.text());
      status("live", "live");
      await events(response.body, take, attempt.signal);
    } catch (problem) {
      if (attempt.signal.aborted) wait = 0;
      else status("lost", problem instanceof TypeError ? "connection lost, trying again" : problem.message);
    } finally {
      release?.();
      signal.removeEventListener("abort", leave);
      document.removeEventListener("visibilitychange", end);
      removeEventListener("pagehide", leave);
    }
    if (!signal.aborted) await new Promise((done) => setTimeout(done, wait));
  }
}

// visible waits until the page is visible.
function visible(signal) {
  return new Promise((done) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      removeEventListener("pageshow", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    addEventListener("pageshow", look);
    signal.addEventListener("abort", look);
    look();
  });
}

// place takes one of the places of pages that keep their stream open, and returns what gives it back; null: all are
// taken. Without locks, which browsers have on this computer and over https, every page keeps its stream open.
async function place() {
  if (!navigator.locks) return () => {};
  for (let i = 0; i < places; i++) {
    const release = await new Promise((got) => {
      navigator.locks.request(`gpupipe-watch-${i}`, { ifAvailable: true }, (lock) => (lock ? new Promise((free) => got(free)) : got(null)));
    });
    if (release) return release;
  }
  return null;
}

// events reads events until the stream ends.
async function events(body, take, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [], kind = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done || signal.aborted) return;
    const lines = value.split("\n");
    for (let i = 0; i < lines.length; i++) {
      pieces.push(lines[i]);
      if (i === lines.length - 1) break; // the line goes on
      const line = pieces.join("");
      pieces = [];
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) take(kind, line.slice(6));
    }
  }
}
