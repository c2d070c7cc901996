"use strict";
// The page: it shows what worker.js computes. The token is in the URL's fragment, which browsers do not send.

const $ = (id) => document.getElementById(id);
const key = "gpupipe.token";
let secret = "";   // which says that this page is closed
let samples = [];  // of the last ten seconds: {time, steps}

function state(text, failed) {
  $("state").textContent = text;
  $("state").className = failed ? "error" : "";
}

function note(text) {
  $("log").textContent += text + "\n";
  $("log").scrollTop = $("log").scrollHeight;
}

// token takes the token from the URL, so that neither a bookmark nor the history keeps it. A reload finds it again.
function token() {
  if (location.hash.length > 1) {
    sessionStorage.setItem(key, decodeURIComponent(location.hash.slice(1)));
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(key) || "";
}

function size(bytes) {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= scale) return `${(bytes / scale).toFixed(1)} ${unit}`;
  }
  return `${bytes} B`;
}

function show(s) {
  const ranks = s.ranks || [], now = performance.now();
  $("ranks").textContent = ranks.length ? `${ranks.join(", ")} of ${s.stages} stages` : "–";
  $("bytes").textContent = `${size(s.bytesSent)}, ${size(s.bytesReceived)}`;
  samples = samples.filter((x) => now - x.time < 10000 && x.steps <= s.steps);
  samples.push({time: now, steps: s.steps});
  if (s.begun || s.steps) $("steps").textContent = s.steps;
  if (s.begun) {
    const steps = s.steps - samples[0].steps, seconds = (now - samples[0].time) / 1000;
    $("rate").textContent = seconds > 0 ? (steps * s.microbatches * ranks.length / seconds).toFixed(1) : "–";
  }
  state(!ranks.length ? "Joined. Waiting for work." : s.begun ? "Computing." : "Preparing kernels.");
}

function ended(text, failed) {
  secret = "";
  worker.terminate();
  $("leave").disabled = true;
  state(text, failed);
}

function receive(m) {
  switch (m.kind) {
  case "ready":
    state("Joining the run …");
    worker.postMessage({join: token(), server: location.origin.replace(/^http/, "ws") + "/"});
    break;
  case "joined":
    secret = m.secret;
    $("member").textContent = m.member;
    $("device").textContent = m.device;
    $("leave").disabled = false;
    break;
  case "status": show(m.status); break;
  case "note": note(m.text); break;
  case "ended": ended("The run has ended, or this tab has left it."); break;
  case "failed": ended(m.text, true); break;
  }
}

let worker;
if (!window.isSecureContext || !navigator.gpu) {
  state(window.isSecureContext ? "This browser has no WebGPU." : "A page gets WebGPU from https or from localhost only.", true);
} else if (!token()) {
  state("The URL has no token: open the one that gpupipe host printed.", true);
} else {
  worker = new Worker("worker.js");
  worker.onmessage = (e) => receive(JSON.parse(e.data));
  worker.onerror = (e) => ended(e.message || "the program failed", true);
  $("leave").onclick = () => worker.postMessage({leave: true});
  addEventListener("pagehide", () => { if (secret) navigator.sendBeacon("leave", secret); });
}
