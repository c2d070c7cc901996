"use strict";
// Takes WebGPU away from the page, as the scenario in its URL says. The test has the page load it first.

const gpus = {
  no_webgpu: undefined,
  no_adapter: {requestAdapter: async () => null},
  silent: {requestAdapter: () => new Promise(() => {})},
};
const gpuScenario = new URLSearchParams(location.search).get("scenario");
if (gpuScenario in gpus) Object.defineProperty(navigator, "gpu", {value: gpus[gpuScenario]});
