// The service that Restate calls. Its handlers do the work of the scenarios of "perdure-bench" of the
// same names. The argument is the port.
import * as restate from "@restatedev/restate-sdk";

// The SDK needs this function of Node 22. Node 20 can do without it.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new Promise((a, b) => ((resolve = a), (reject = b)));
  return { promise, resolve, reject };
};

const sum = (list) => list.reduce((a, b) => a + b, 0);

const bench = restate.service({
  name: "Bench",
  handlers: {
    Jobs: async (_ctx, _n) => 1,

    // Steps records n steps, one after the other.
    Steps: async (ctx, n) => {
      let done = 0;
      for (let i = 0; i < n; i++) done += await ctx.run("look", () => 1);
      return done;
    },

    // Children calls n handlers and waits for all.
    Children: async (ctx, n) =>
      sum(await restate.RestatePromise.all(
        Array.from({ length: n }, (_, i) => ctx.serviceClient({ name: "Bench" }).Jobs(i)))),

    // Parallel records n steps that run at the same time.
    Parallel: async (ctx, n) =>
      sum(await restate.RestatePromise.all(Array.from({ length: n }, () => ctx.run("look", () => 1)))),
  },
});

restate.serve({ services: [bench], port: Number(process.argv[2]) });
