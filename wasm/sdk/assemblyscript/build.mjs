#!/usr/bin/env node
// node gpupipe/build.mjs hook.ts hook.wasm
//
// Compiles a hook. For each function of a hook's name that the file exports it writes the export that the host calls; index.ts
// lists the names.
import fs from "node:fs";
import path from "node:path";
import asc from "assemblyscript/asc";

const arrays = (call) => `(arrays: usize, count: i32): i32 { const a = new g.Arrays(arrays, count); ${call} return 0; }`;
const graph = (value) => `(_: usize, count: i32): i32 { return ${value}.handle; }`;
const clock = "<i64>a.elements<f64>(0)[0], <i64>a.elements<f64>(0)[1]";

// By the name of the user's function: the name of the export, and the rest of it.
const glue = {
  buildLoss: ["build_loss", graph('hook.buildLoss(g.Value.input("logits"), g.Value.input("targets"))')],
  buildLossOfInputs: ["build_loss", graph("hook.buildLossOfInputs()")],
  buildModel: ["build_model", graph('hook.buildModel(g.Value.input("tokens"))')],
  mapDocument: ["map_document", arrays("hook.mapDocument(a.text(0));")],
  mapBatch: ["map_batch", arrays("hook.mapBatch(new g.Batch(a, 5));")],
  tokenWeights: ["token_weights", arrays("hook.tokenWeights(new g.Batch(a, 4));")],
  learningRate: ["learning_rate", arrays(`a.elements<f64>(1)[0] = hook.learningRate(${clock}, a.elements<f64>(0)[2]);`)],
  onMetrics: ["on_metrics", arrays("if (hook.onMetrics(new g.Json(a.text(0)))) return 1;")],
  lossScalars: ["loss_scalars", arrays(`hook.lossScalars(${clock}, a.elements<f32>(1));`)],
  lossGrad: ["loss_grad", arrays("hook.lossGrad(new g.Sample(a));")],
  save: ["gpupipe_save", "(to: usize, room: i32): i32 { return g.put(hook.save(), to, room); }"],
  load: ["gpupipe_load", "(from: usize, length: i32): i32 { hook.load(new g.Slice<u8>(from, length)); return 0; }"],
};

const [source, target] = process.argv.slice(2);
if (!target) {
  console.error("usage: node gpupipe/build.mjs hook.ts hook.wasm");
  process.exit(2);
}
const text = fs.readFileSync(source, "utf8");
const has = (name) => new RegExp(`^export function ${name}\\b`, "m").test(text);
const names = Object.keys(glue).filter(has);
if (names.every((name) => name === "save" || name === "load")) {
  console.error(`${source} exports no hook, expected a function of ${Object.keys(glue).join(", ")}`);
  process.exit(1);
}
const entry = `import * as g from "gpupipe";
import * as hook from "./${path.basename(source, ".ts")}";
export { gpupipe_abi_v1, gpupipe_alloc } from "gpupipe/host";
export function gpupipe_open(text: usize, length: i32, seed: i64): i32 { g.start(text, length, seed); ${has("open") ? "hook.open();" : ""} return 0; }
${names.map((name) => `export function ${glue[name].join("")}`).join("\n")}
`;

const { error } = await asc.main(
  [
    "gpupipe.entry.ts",
    "--outFile", path.resolve(target),
    "-O3", "--runtime", "incremental", "--enable", "bulk-memory",
    "--use", "abort=~lib/gpupipe/host/abort", "--use", "seed=~lib/gpupipe/host/seed",
  ],
  {
    stdout: process.stdout,
    stderr: process.stderr,
    readFile(name, base) {
      if (name === "gpupipe.entry.ts") return entry;
      try {
        return fs.readFileSync(path.resolve(path.dirname(source), base, name), "utf8");
      } catch {
        return null;
      }
    },
    writeFile: (name, contents, base) => fs.writeFileSync(path.resolve(base, name), contents),
  },
);
if (error) process.exit(1);
