"use strict";
// The worker runs the program. Browsers slow the timers of hidden pages down, but not those of workers.

importScripts("wasm_exec.js");

const send = (m) => postMessage(JSON.stringify(m));
self.programReady = () => send({kind: "ready"});
onmessage = (e) => (e.data.leave ? self.leave() : self.join(e.data.server, e.data.join));

(async () => {
  const go = new Go();
  const {instance} = await WebAssembly.instantiateStreaming(fetch("program.wasm"), go.importObject);
  await go.run(instance);
  send({kind: "failed", text: "the program has ended"});
})().catch((e) => send({kind: "failed", text: e.message || String(e)}));
