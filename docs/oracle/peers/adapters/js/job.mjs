// What the peers in JavaScript need: WebGPU in Node.js, by Dawn, and the job that adapters.py writes. They are started
// with the job's folder.
import {readFileSync} from "node:fs";
import "core-js/actual/iterator/index.js"; // jax-js needs it where Node.js is older than 22
import {create, globals} from "webgpu";

console.log = console.error; // standard output is for steps

const folder = process.argv[2];
const read = (name) => readFileSync(`${folder}/${name}`);
const floats = read("weights.f32"), tokens = read("tokens.u16");

Object.assign(globalThis, globals);
Object.defineProperty(globalThis, "navigator", {value: {gpu: create([]), userAgent: "Node.js"}, configurable: true});
console.error(`on ${(await navigator.gpu.requestAdapter()).info.description}`);

// batch_size, seq_len, model in the words of Hugging Face, adamw, weight_decay and grad_clip.
export const job = JSON.parse(read("job.json"));

// The first weights: name -> value of make(data, shape), f32 in the layout of Hugging Face.
export function weights(make) {
  return Object.fromEntries(job.tensors.map(({name, shape, offset}) => {
    const at = floats.byteOffset + 4 * offset, count = shape.reduce((a, b) => a * b, 1);
    return [name, make(new Float32Array(floats.buffer.slice(at, at + 4 * count)), shape)];
  }));
}

// Angles of the rotary position embedding [seq_len, 1, head_dim / 2].
export function angles() {
  const half = job.model.head_dim / 2;
  return Float32Array.from({length: job.seq_len * half}, (_, i) => Math.floor(i / half) * job.model.rope_theta ** (-(i % half) / half));
}

// Trains until the process is ended. step(inputs, targets, t) gets the tokens of step t, from 1, as
// batch_size · seq_len numbers, and returns a promise of the loss.
export async function train(step) {
  const n = job.batch_size * job.seq_len, batches = Math.floor((tokens.length / 2 - 1) / n);
  const window = (at) => Int32Array.from({length: n}, (_, i) => tokens.readUInt16LE(2 * (at + i)));
  for (let t = 1; ; t++) {
    const at = (t - 1) % batches * n;
    const loss = await step(window(at), window(at + 1), t);
    process.stdout.write(`${JSON.stringify({event: "step", step: {step: t, loss}})}\n`);
  }
}
