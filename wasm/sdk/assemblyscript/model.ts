// Models: the functions here and the methods of Value write them.
import { Value, real } from "./graph";

@external("gpupipe", "graph_parameter")
declare function hostParameter(name: usize, length: i32, shape: usize, rank: i32, attributes: usize, attributesLength: i32): i32;
@external("gpupipe", "graph_unit") declare function hostUnit(name: usize, length: i32): i32;

/** Begins the next unit, a piece that the model can be cut at: one f32 [B, T, d] goes from each to the next. */
export function unit(name: string): void {
  const n = String.UTF8.encode(name);
  hostUnit(changetype<usize>(n), n.byteLength);
}

/** An f32 that is trained; attributes are a JSON object or "". */
export function parameter(name: string, shape: i32[], attributes: string = ""): Value {
  const n = String.UTF8.encode(name);
  const a = String.UTF8.encode(attributes);
  const dims = StaticArray.fromArray(shape);
  return new Value(
    hostParameter(changetype<usize>(n), n.byteLength, changetype<usize>(dims), dims.length, changetype<usize>(a), a.byteLength),
  );
}

/** A parameter that begins normally distributed. */
export function normal(name: string, std: f64, shape: i32[]): Value {
  return parameter(name, shape, `{"init":"normal","std":${real(std)}}`);
}

/** A parameter that begins as ones. */
export function ones(name: string, shape: i32[]): Value {
  return parameter(name, shape, '{"init":"ones"}');
}

/** A parameter that begins as zeros. */
export function zeros(name: string, shape: i32[]): Value {
  return parameter(name, shape, '{"init":"zeros"}');
}

/** Causal attention of q [B, T, H, D], k and v [B, T, KV, D]: [B, T, H, D]. With segments u32 [B, T] a token sees its own only. */
export function attention(q: Value, k: Value, v: Value, segments: Value | null = null): Value {
  const inputs = [q, k, v];
  if (segments) inputs.push(segments);
  return Value.op("attention", inputs);
}
