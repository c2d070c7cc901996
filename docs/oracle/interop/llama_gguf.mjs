// Runs a GGUF file in llama.cpp: node llama_gguf.mjs MODEL.gguf < REQUEST
// REQUEST is JSON: text, to be tokenized; tokens, whose likelihoods are wanted; prompt, to be continued greedily by count
// tokens. The folder of packages, with node-llama-cpp, is in NODE_PACKAGES. Prints JSON: ids of the text; the mean
// negative log-likelihood of tokens 1, 2, … given those before; the continuation.
import {createRequire} from "node:module";
import {readFileSync} from "node:fs";
import {pathToFileURL} from "node:url";

const packages = createRequire(process.env.NODE_PACKAGES + "/");
const {getLlama} = await import(pathToFileURL(packages.resolve("node-llama-cpp")));
const request = JSON.parse(readFileSync(0));
const llama = await getLlama({gpu: false, build: "never", maxThreads: 2, logLevel: process.env.LLAMA_LOG ?? "error"});
const model = await llama.loadModel({modelPath: process.argv[2]});
const context = await model.createContext({contextSize: 512, batchSize: 512, threads: 2,
  experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32", flashAttention: false}); // not F16, the default
const sequence = context.getSequence();
const result = {ids: [...model.tokenize(request.text ?? "")]};

if (request.tokens) {
  const results = await sequence.controlledEvaluate(request.tokens.map((t) => [t, {generateNext: {probabilities: true}}]));
  let sum = 0;
  for (let i = 1; i < request.tokens.length; i++) sum -= Math.log(results[i - 1].next.probabilities.get(request.tokens[i]));
  result.loss = sum / (request.tokens.length - 1);
  await sequence.clearHistory();
}
result.greedy = [];
if (request.count) {
  for await (const token of sequence.evaluate(request.prompt, {temperature: 0, yieldEogToken: true})) {
    result.greedy.push(token);
    if (result.greedy.length === request.count) break;
  }
}
console.log(JSON.stringify(result));
process.exit(0);
