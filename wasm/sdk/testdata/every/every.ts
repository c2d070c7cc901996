// Every hook, each of which does a little with all that it is given. TestEveryHookInAllLanguages says what.
import { attention, Batch, config, Json, keep, log, normal, ones, Sample, Slice, unit, Value, where, zeros } from "gpupipe";

let calls: u32 = 0;
let scale: f64;
let loud: bool;
let name: string = "";

export function open(): void {
  scale = config().number("scale", 2);
  loud = config().isTrue("loud");
  name = config().string("name", "no one");
  log(name);
}

export function save(): StaticArray<u8> {
  const state = new StaticArray<u8>(4);
  store<u32>(changetype<usize>(state), calls);
  return state;
}

export function load(state: Slice<u8>): void {
  calls = load_u32(state);
}

function load_u32(s: Slice<u8>): u32 {
  return <u32>s[0] | (<u32>s[1] << 8) | (<u32>s[2] << 16) | (<u32>s[3] << 24);
}

export function mapDocument(text: string): void {
  keep(text);
  if (loud) keep(name);
}

export function mapBatch(b: Batch): void {
  for (let i = 0; i < b.rows * b.length; i++) {
    const token = b.tokens[i];
    b.tokens[i] = b.targets[i];
    b.targets[i] = token;
    b.segments[i] = <u32>(i / b.length) + <u32>b.step;
    b.weights[i] += <f32>b.steps;
    if (b.alignedLength > 0) b.weights[i] += b.aligned<f32>(0)[i * b.alignedDim(0, 2)];
  }
  calls++;
}

export function tokenWeights(b: Batch): void {
  for (let i = 0; i < b.rows * b.length; i++) {
    b.weights[i] *= <f32>(scale * <f64>(b.step + b.steps) + <f64>b.tokens[i] - <f64>b.targets[i]);
  }
}

export function learningRate(step: i64, steps: i64, base: f64): f64 {
  return base * scale + <f64>step / <f64>steps;
}

export function onMetrics(metrics: Json): bool {
  return metrics.number("loss", 0) > scale;
}

export function lossScalars(step: i64, steps: i64, scalars: Slice<f32>): void {
  scalars[0] = <f32>step;
  scalars[1] = <f32>(<f64>step / <f64>steps);
}

export function lossGrad(s: Sample): void {
  for (let i = 0; i < s.rows; i++) {
    const at = i * s.vocab + <i32>s.targets[i];
    s.losses[i] = s.logits[at];
    s.gradient[at] = 1 / <f32>s.rows;
  }
}

export function buildLossOfInputs(): Value {
  const logits = Value.input("logits");
  const targets = Value.input("targets");
  const nll = logits.crossEntropy(targets);
  const far = Value.input("hidden").square().mean([-1]);
  const less = nll.less(Value.number(1));
  const hot = nll * Value.scalar("heat");
  const cold = nll / Value.scalar("cold");
  const heated = where(less, hot, cold);
  return -(heated - far).shift(-0.5) + nll.second().scale(1e-3);
}

export function buildModel(tokens: Value): Value {
  const vocab = 256, heads = 4, d = 64;
  const rows = tokens.shape()[0], length = tokens.shape()[1];
  let x = normal("embedding", 0.02, [vocab, d]).embedding(tokens);
  for (let layer = 0; layer < 2; layer++) {
    unit(`layer.${layer}`);
    const h = x.rmsNorm(ones(`layer.${layer}.norm`, [d]), 1e-5);
    const q = h.linear(normal(`layer.${layer}.q`, 0.01, [d, d])).reshape([rows, length, heads, d / heads]);
    const k = q.rope(10000);
    const a = layer > 0 ? attention(k, k, q) : attention(k, k, q, Value.input("segments"));
    x = x + a.reshape([rows, length, -1]);
  }
  x = x.layerNorm(ones("norm", [d]), zeros("bias", [d]), 0.1);
  x = x.broadcast([2, rows, length, d]).slice(0, 1, 2).permute([1, 0, 2, 3]).reshape([rows, length, -1]);
  return x.softmax().linear(normal("head", 0.02, [vocab, d]));
}
