// Generates tokens with llama.cpp: node llama_peer.mjs MODEL.gguf PROMPT TOKENS THREADS
// The folder of packages, with node-llama-cpp, is in NODE_PACKAGES. Prints tokens/s, the prompt's time included.
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const packages = createRequire(process.env.NODE_PACKAGES + "/");
const {getLlama} = await import(pathToFileURL(packages.resolve("node-llama-cpp")));
const [path, prompt, tokens, threads] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", maxThreads: +threads, logLevel: "error"});
const model = await llama.loadModel({modelPath: path, useMmap: false}); // in memory of its own, with it the faster
const context = await model.createContext({contextSize: 512, threads: +threads});
const began = process.hrtime.bigint();
let made = 0;
for await (const _ of context.getSequence().evaluate([...Buffer.from(prompt)], {temperature: 0})) {
  if (++made == tokens) break;
}
console.log(JSON.stringify({tokens_per_s: made / (Number(process.hrtime.bigint() - began) / 1e9)}));
process.exit(0);
