// Graphs: each method adds an op and returns its result. A mistake ends the call with an error that names the op.
@external("gpupipe", "graph_input") declare function hostInput(name: usize, length: i32): i32;
@external("gpupipe", "graph_scalar") declare function hostScalar(name: usize, length: i32): i32;
@external("gpupipe", "graph_op")
declare function hostOp(name: usize, length: i32, inputs: usize, count: i32, attributes: usize, attributesLength: i32): i32;
@external("gpupipe", "graph_shape") declare function hostShape(handle: i32, dims: usize, capacity: i32): i32;

/** A tensor of the graph. */
@final
export class Value {
  constructor(
    /** The number by which the host knows it. */
    public handle: i32,
  ) {}

  /** A named input: of a loss "logits", "targets", "weights", "hidden", "lm_head.weight", "model.norm.weight" or an array of
   * data.aligned; of a model "tokens" or "segments". */
  static input(name: string): Value {
    const n = String.UTF8.encode(name);
    return new Value(hostInput(changetype<usize>(n), n.byteLength));
  }

  /** An f32 [] of a loss that lossScalars sets for each step. */
  static scalar(name: string): Value {
    const n = String.UTF8.encode(name);
    return new Value(hostScalar(changetype<usize>(n), n.byteLength));
  }

  /** Any op of docs/HOOKS.md; attributes are a JSON object or "". */
  static op(name: string, inputs: Value[], attributes: string = ""): Value {
    const n = String.UTF8.encode(name);
    const a = String.UTF8.encode(attributes);
    const handles = new StaticArray<i32>(inputs.length);
    for (let i = 0; i < inputs.length; i++) handles[i] = inputs[i].handle;
    return new Value(
      hostOp(changetype<usize>(n), n.byteLength, changetype<usize>(handles), handles.length, changetype<usize>(a), a.byteLength),
    );
  }

  /** A constant f32 []. */
  static number(x: f64): Value {
    return Value.op("full", [], `{"value":${real(x)}}`);
  }

  /** The result after this one, of an op that has several. */
  second(): Value {
    return new Value(this.handle + 1);
  }

  /** The extents of its axes. */
  shape(): i32[] {
    const dims = new StaticArray<i32>(8);
    const rank = hostShape(this.handle, changetype<usize>(dims), dims.length);
    const shape: i32[] = [];
    for (let i = 0; i < rank; i++) shape.push(dims[i]);
    return shape;
  }

  @operator("+") plus(y: Value): Value {
    return Value.op("add", [this, y]);
  }

  @operator("-") minus(y: Value): Value {
    return Value.op("sub", [this, y]);
  }

  @operator("*") times(y: Value): Value {
    return Value.op("mul", [this, y]);
  }

  @operator("/") over(y: Value): Value {
    return Value.op("div", [this, y]);
  }

  @operator.prefix("-") neg(): Value {
    return Value.op("neg", [this]);
  }

  /** c·x. */
  scale(c: f64): Value {
    return Value.op("scale", [this], `{"factor":${real(c)}}`);
  }

  /** x + c. */
  shift(c: f64): Value {
    return Value.op("shift", [this], `{"offset":${real(c)}}`);
  }

  /** c·tanh(x/c). */
  softcap(c: f64): Value {
    return Value.op("softcap", [this], `{"cap":${real(c)}}`);
  }

  /** x limited to [low, high]. */
  clamp(low: f64, high: f64): Value {
    return Value.op("clamp", [this], `{"low":${real(low)},"high":${real(high)}}`);
  }

  /** As "f32", "i32" or "u32". */
  cast(dtype: string): Value {
    return Value.op("cast", [this], `{"to":"${dtype}"}`);
  }

  /** The same elements in another shape; one extent may be −1. */
  reshape(shape: i32[]): Value {
    return Value.op("reshape", [this], `{"shape":${list(shape)}}`);
  }

  /** Repeated along new leading axes and axes of extent one. */
  broadcast(shape: i32[]): Value {
    return Value.op("broadcast", [this], `{"shape":${list(shape)}}`);
  }

  /** The axes in another order. */
  permute(axes: i32[]): Value {
    return Value.op("permute", [this], `{"axes":${list(axes)}}`);
  }

  /** The coordinates from start to before limit of an axis. */
  slice(axis: i32, start: i32, limit: i32): Value {
    return Value.op("slice", [this], `{"axis":${axis.toString()},"start":${start.toString()},"limit":${limit.toString()}}`);
  }

  /** Adds over axes, which leave the shape, or with keep stay as one; negative ones count from the end. */
  sum(axes: i32[], keep: bool = false): Value {
    return reduce("sum", this, axes, keep);
  }

  /** The mean over axes; see sum. */
  mean(axes: i32[], keep: bool = false): Value {
    return reduce("mean", this, axes, keep);
  }

  /** The largest over axes; see sum. */
  max(axes: i32[], keep: bool = false): Value {
    return reduce("max", this, axes, keep);
  }

  /** The smallest over axes; see sum. */
  min(axes: i32[], keep: bool = false): Value {
    return reduce("min", this, axes, keep);
  }

  /** log Σeˣ along the last axis, without overflow. */
  logSumExp(): Value {
    const top = this.max([-1], true).stopGradient();
    return (this - top).exp().sum([-1]).log() + top.sum([-1]);
  }

  /** x·wᵀ, w [outputs, inputs]. */
  linear(w: Value): Value {
    return Value.op("matmul", [this, w], '{"trans_b":true}');
  }

  /** The k largest elements of each row of x [N, E] in descending order, [N, k]; the second result is their columns, u32 [N, k]. */
  topK(k: i32): Value {
    return Value.op("top_k", [this], `{"k":${k.toString()}}`);
  }

  /** Sorts the pairs of a token and one of its experts, ids u32 [N, k], by expert: the pair in each sorted row u32 [N·k]; the second
   * result is the row of each pair, u32 [N, k], and the one after it where the rows of each expert begin, u32 [experts + 1]. */
  groupRows(experts: i32): Value {
    return Value.op("group_rows", [this], `{"experts":${experts.toString()}}`);
  }

  /** Rows of x [M, D] by an index u32 […]: […, D]. The inverse u32 [M, c] lists the positions in the index that read each row. */
  take(index: Value, inverse: Value): Value {
    return Value.op("take", [this, index, inverse]);
  }

  /** x·wᵀ for the rows of each expert: x [R, inputs], w [E, outputs, inputs], offsets u32 [E + 1] of groupRows. */
  groupedLinear(w: Value, offsets: Value): Value {
    return Value.op("grouped_matmul", [this, w, offsets], '{"trans_b":true}');
  }

  /** x/√(mean(x²) + eps)·w along the last axis. */
  rmsNorm(w: Value, eps: f64): Value {
    return Value.op("rms_norm", [this, w], `{"eps":${real(eps)}}`);
  }

  /** (x − mean)/√(variance + eps)·w + b along the last axis. */
  layerNorm(w: Value, b: Value, eps: f64): Value {
    return Value.op("layer_norm", [this, w, b], `{"eps":${real(eps)}}`);
  }

  /** Rotates the two halves of x [B, T, H, D] by the position. */
  rope(theta: f64): Value {
    return Value.op("rope", [this], `{"theta":${real(theta)}}`);
  }

  /** `exp` of each element. */
  exp(): Value {
    return Value.op("exp", [this]);
  }

  /** `log` of each element. */
  log(): Value {
    return Value.op("log", [this]);
  }

  /** `sqrt` of each element. */
  sqrt(): Value {
    return Value.op("sqrt", [this]);
  }

  /** `rsqrt` of each element. */
  rsqrt(): Value {
    return Value.op("rsqrt", [this]);
  }

  /** `tanh` of each element. */
  tanh(): Value {
    return Value.op("tanh", [this]);
  }

  /** `sigmoid` of each element. */
  sigmoid(): Value {
    return Value.op("sigmoid", [this]);
  }

  /** `erf` of each element. */
  erf(): Value {
    return Value.op("erf", [this]);
  }

  /** `abs` of each element. */
  abs(): Value {
    return Value.op("abs", [this]);
  }

  /** `square` of each element. */
  square(): Value {
    return Value.op("square", [this]);
  }

  /** `reciprocal` of each element. */
  reciprocal(): Value {
    return Value.op("reciprocal", [this]);
  }

  /** `silu` of each element. */
  silu(): Value {
    return Value.op("silu", [this]);
  }

  /** `gelu` of each element. */
  gelu(): Value {
    return Value.op("gelu", [this]);
  }

  /** `gelu_tanh` of each element. */
  geluTanh(): Value {
    return Value.op("gelu_tanh", [this]);
  }

  /** `squared_relu` of each element. */
  squaredReLU(): Value {
    return Value.op("squared_relu", [this]);
  }

  /** `not` of each element. */
  not(): Value {
    return Value.op("not", [this]);
  }

  /** `is_finite` of each element. */
  isFinite(): Value {
    return Value.op("is_finite", [this]);
  }

  /** The same value, through which no gradient flows. */
  stopGradient(): Value {
    return Value.op("stop_gradient", [this]);
  }

  /** eˣ/Σeˣ along the last axis. */
  softmax(): Value {
    return Value.op("softmax", [this]);
  }

  /** x − log Σeˣ along the last axis. */
  logSoftmax(): Value {
    return Value.op("log_softmax", [this]);
  }

  /** Exchanges the last two axes. */
  transpose(): Value {
    return Value.op("transpose", [this]);
  }

  /** `pow` of the two. */
  pow(y: Value): Value {
    return Value.op("pow", [this, y]);
  }

  /** `maximum` of the two. */
  maximum(y: Value): Value {
    return Value.op("maximum", [this, y]);
  }

  /** `minimum` of the two. */
  minimum(y: Value): Value {
    return Value.op("minimum", [this, y]);
  }

  /** `and` of the two. */
  and(y: Value): Value {
    return Value.op("and", [this, y]);
  }

  /** `or` of the two. */
  or(y: Value): Value {
    return Value.op("or", [this, y]);
  }

  /** `less` of the two. */
  less(y: Value): Value {
    return Value.op("less", [this, y]);
  }

  /** `less_equal` of the two. */
  lessEqual(y: Value): Value {
    return Value.op("less_equal", [this, y]);
  }

  /** `greater` of the two. */
  greater(y: Value): Value {
    return Value.op("greater", [this, y]);
  }

  /** `greater_equal` of the two. */
  greaterEqual(y: Value): Value {
    return Value.op("greater_equal", [this, y]);
  }

  /** `equal` of the two. */
  equal(y: Value): Value {
    return Value.op("equal", [this, y]);
  }

  /** `not_equal` of the two. */
  notEqual(y: Value): Value {
    return Value.op("not_equal", [this, y]);
  }

  /** Takes element ids[i] of row i: […, V] and u32 […] give […]. */
  pick(y: Value): Value {
    return Value.op("pick", [this, y]);
  }

  /** Rows of a table: [V, D] and u32 […] give […, D]. */
  embedding(y: Value): Value {
    return Value.op("embedding", [this, y]);
  }

  /** The product over the last two axes. */
  matmul(y: Value): Value {
    return Value.op("matmul", [this, y]);
  }

  /** The negative log-likelihood of targets u32 [N] under logits [N, V]: [N]. */
  crossEntropy(y: Value): Value {
    return Value.op("cross_entropy", [this, y]);
  }
}

/** x where the condition is not zero, else y. */
export function where(condition: Value, x: Value, y: Value): Value {
  return Value.op("where", [condition, x, y]);
}

/** The values one after the other along an axis. */
export function concat(axis: i32, values: Value[]): Value {
  return Value.op("concat", values, `{"axis":${axis.toString()}}`);
}

function reduce(op: string, x: Value, axes: i32[], keep: bool): Value {
  return Value.op(op, [x], `{"axes":${list(axes)},"keep":${keep ? "true" : "false"}}`);
}

function list(xs: i32[]): string {
  return "[" + xs.join(",") + "]";
}

/** JSON of a number, with hexadecimal digits: they lose nothing. */
export function real(x: f64): string {
  const bits = reinterpret<u64>(x);
  const sign = bits >> 63 ? "-" : "";
  const exponent = <i32>((bits >> 52) & 0x7ff);
  const fraction = bits & 0xfffffffffffff;
  if (exponent == 0x7ff) return fraction ? '"nan"' : `"${sign}inf"`;
  const digits = fraction.toString(16).padStart(13, "0");
  return exponent ? `"${sign}0x1.${digits}p${(exponent - 1023).toString()}"` : `"${sign}0x0.${digits}p-1022"`;
}
