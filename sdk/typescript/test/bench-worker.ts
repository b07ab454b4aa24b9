// A worker that does nothing, for perdure-bench --scenario sdks.

import { Worker } from "../src/index.js";

const worker = new Worker({ slots: 64, announce: false });
worker.task("bench", () => 1);
await worker.run();
