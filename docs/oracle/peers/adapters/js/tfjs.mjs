// Trains a Llama by TensorFlow.js. See adapters.py. Its Adam has no weight decay, so the step has it.
import {angles, job, train, weights} from "./job.mjs";
import * as tf from "@tensorflow/tfjs";
import "@tensorflow/tfjs-backend-webgpu";

const {model: c, batch_size: B, seq_len: T} = job;
const d = c.head_dim;

await tf.setBackend("webgpu");
const p = weights((data, shape) => tf.variable(tf.tensor(data, shape)));
const angle = tf.tensor(angles(), [T, 1, d / 2]);
const cos = tf.cos(angle), sin = tf.sin(angle);
const mask = tf.sub(1, tf.linalg.bandPart(tf.ones([T, T]), -1, 0)).mul(-1e9); // 0 where a token attends

function rmsNorm(x, weight) {
  return x.mul(tf.rsqrt(x.square().mean(-1, true).add(c.rms_norm_eps))).mul(weight);
}

// Rotary position embedding of x [B, T, heads, head_dim].
function rotate(x) {
  const [a, b] = tf.split(x, 2, -1);
  return tf.concat([a.mul(cos).sub(b.mul(sin)), b.mul(cos).add(a.mul(sin))], -1);
}

// Rows of x [B·T, in] by a weight [out, in].
const linear = (x, weight) => tf.matMul(x, weight, false, true);

function attention(h, w) {
  const heads = (name) => linear(h, w(`self_attn.${name}_proj`)).reshape([B, T, -1, d]);
  const byHead = (x) => x.transpose([0, 2, 1, 3]);
  const [q, k, v] = [byHead(rotate(heads("q"))), byHead(rotate(heads("k"))), byHead(heads("v"))];
  const scores = tf.matMul(q, k, false, true).mul(1 / Math.sqrt(d)).add(mask);
  return byHead(tf.matMul(tf.softmax(scores), v)).reshape([B * T, -1]);
}

function loss(inputs, targets) {
  const embedding = p["model.embed_tokens.weight"];
  let x = tf.gather(embedding, inputs);
  for (let i = 0; i < c.num_hidden_layers; i++) {
    const w = (name) => p[`model.layers.${i}.${name}.weight`];
    x = x.add(linear(attention(rmsNorm(x, w("input_layernorm")), w), w("self_attn.o_proj")));
    const h = rmsNorm(x, w("post_attention_layernorm")), gate = linear(h, w("mlp.gate_proj"));
    x = x.add(linear(gate.mul(tf.sigmoid(gate)).mul(linear(h, w("mlp.up_proj"))), w("mlp.down_proj")));
  }
  const head = c.tie_word_embeddings ? embedding : p["lm_head.weight"];
  return tf.losses.softmaxCrossEntropy(tf.oneHot(targets, c.vocab_size), linear(rmsNorm(x, p["model.norm.weight"]), head));
}

const optimizer = tf.train.adam(job.adamw.lr, ...job.adamw.betas, job.adamw.eps);
if (c.num_key_value_heads !== c.num_attention_heads) throw new Error("grouped queries are not written here");

await train(async (inputs, targets) => {
  const value = tf.tidy(() => {
    const {value, grads} = optimizer.computeGradients(() => loss(tf.tensor1d(inputs, "int32"), tf.tensor1d(targets, "int32")));
    const norm = Object.values(grads).map((g) => g.square().sum()).reduce((a, b) => a.add(b)).sqrt();
    const clip = tf.minimum(1, tf.div(job.grad_clip, norm.add(1e-6)));
    for (const x of Object.values(p)) {
      if (x.rank >= 2) x.assign(x.mul(1 - job.adamw.lr * job.weight_decay));
    }
    optimizer.applyGradients(Object.fromEntries(Object.entries(grads).map(([name, g]) => [name, g.mul(clip)])));
    return value;
  });
  const [number] = await value.data();
  value.dispose();
  return number;
});
