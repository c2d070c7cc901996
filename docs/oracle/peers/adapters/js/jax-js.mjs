// Trains a Llama by jax-js: one compiled step. See adapters.py. An array that is used again is passed as x.ref.
import {angles, job, train, weights} from "./job.mjs";
import {defaultDevice, init, jit, nn, numpy as np, tree, valueAndGrad} from "@jax-js/jax";

const {model: c, batch_size: B, seq_len: T} = job;

function rmsNorm(x, weight) {
  const square = np.square(x.ref).mean(-1, {keepdims: true});
  return x.div(np.sqrt(square.add(c.rms_norm_eps))).mul(weight);
}

// Rotary position embedding of x [B, T, heads, head_dim].
function rotate(x, {cos, sin}) {
  const [a, b] = np.split(x, 2, -1);
  return np.concatenate([a.ref.mul(cos.ref).sub(b.ref.mul(sin.ref)), b.mul(cos).add(a.mul(sin))], -1);
}

const linear = (x, weight) => np.matmul(x, weight.transpose());
const heads = (x) => x.reshape([B, T, -1, c.head_dim]);

function logitsOf(p, inputs, rope) {
  const embedding = p["model.embed_tokens.weight"];
  let x = embedding.ref.slice(inputs);
  for (let i = 0; i < c.num_hidden_layers; i++) {
    const w = (name) => p[`model.layers.${i}.${name}.weight`];
    let h = rmsNorm(x.ref, w("input_layernorm"));
    const [q, k, v] = ["q", "k", "v"].map((name) => heads(linear(h.ref, w(`self_attn.${name}_proj`))));
    h.dispose();
    const y = nn.dotProductAttention(rotate(q, tree.ref(rope)), rotate(k, tree.ref(rope)), v, {isCausal: true});
    x = x.add(linear(y.reshape([B, T, -1]), w("self_attn.o_proj")));
    h = rmsNorm(x.ref, w("post_attention_layernorm"));
    h = nn.silu(linear(h.ref, w("mlp.gate_proj"))).mul(linear(h, w("mlp.up_proj")));
    x = x.add(linear(h, w("mlp.down_proj")));
  }
  tree.dispose(rope);
  x = rmsNorm(x, p["model.norm.weight"]);
  if (!c.tie_word_embeddings) embedding.dispose();
  return linear(x, c.tie_word_embeddings ? embedding : p["lm_head.weight"]);
}

function lossOf(p, inputs, targets, rope) {
  const logProbabilities = nn.logSoftmax(logitsOf(p, inputs, rope));
  return logProbabilities.mul(nn.oneHot(targets, c.vocab_size)).sum().mul(-1 / (B * T));
}

// A parameter and its moments after step t. jax-js has its optimizers in a package of its own, @jax-js/optax.
function adamw(p, g, {m, v}, t) {
  const {lr, betas: [b1, b2], eps} = job.adamw;
  const decay = p.ndim >= 2 ? 1 - lr * job.weight_decay : 1;
  m = m.mul(b1).add(g.ref.mul(1 - b1));
  v = v.mul(b2).add(np.square(g).mul(1 - b2));
  const mean = m.ref.div(np.subtract(1, np.power(b1, t.ref))), square = v.ref.div(np.subtract(1, np.power(b2, t)));
  return [p.mul(decay).sub(mean.div(np.sqrt(square).add(eps)).mul(lr)), {m, v}];
}

const step = jit((p, state, t, inputs, targets, rope) => {
  const [loss, gradients] = valueAndGrad(lossOf)(tree.ref(p), inputs, targets, rope);
  const norm = np.sqrt(Object.values(gradients).map((g) => np.square(g.ref).sum()).reduce((a, b) => a.add(b)));
  const clip = np.minimum(np.reciprocal(norm.add(1e-6)).mul(job.grad_clip), 1);
  const next = {}, moments = {};
  for (const k in p) [next[k], moments[k]] = adamw(p[k], gradients[k].mul(clip.ref), state[k], t.ref);
  tree.dispose([clip, t]);
  return [loss, next, moments];
});

await init("webgpu");
defaultDevice("webgpu");
let p = weights((data, shape) => np.array(data).reshape(shape));
let state = weights((_, shape) => ({m: np.zeros(shape), v: np.zeros(shape)}));
const angle = np.array(angles()).reshape([T, 1, c.head_dim / 2]);
const rope = {cos: np.cos(angle.ref), sin: np.sin(angle)};
const tokens = (x) => np.array(x, {dtype: np.int32}).reshape([B, T]);
await train(async (inputs, targets, t) => {
  let loss;
  [loss, p, state] = step(p, state, np.array(t), tokens(inputs), tokens(targets), tree.ref(rope));
  return await loss.jsAsync();
});
