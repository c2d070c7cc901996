// Server-sent events over fetch, which sends a header with the token of a server that other machines reach.

const retryMillis = 1000;

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
    try {
      const response = await fetch(address, { signal, headers: token ? { Authorization: `Bearer ${token}` } : {} });
      if (!response.ok) throw new Error(await response.text());
      status("live", "live");
      await events(response.body, take, signal);
    } catch (problem) {
      if (signal.aborted) return;
      status("lost", problem instanceof TypeError ? "connection lost, trying again" : problem.message);
    }
    await new Promise((done) => setTimeout(done, retryMillis));
  }
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
