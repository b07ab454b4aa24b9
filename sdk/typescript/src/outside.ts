// Sees what the code of an agent does to the machine between its steps, for perdure/test.
//
// That code is executed again whenever the run goes on, so what it writes is written again, and what it reads may be
// otherwise then. While agents are watched, functions of Node.js that write, start programs, ask for the name of the
// machine or fetch are wrapped, and so is the environment.

import child_process from "node:child_process";
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import os from "node:os";
import { scopes } from "./execution.js";

type Functions = Record<string, unknown>;

const calls: [() => object, string, string][] = [
  [() => fs, "writes the file", "writeFile writeFileSync appendFile appendFileSync createWriteStream"],
  [() => fs.promises, "writes the file", "writeFile appendFile"],
  [() => fs, "makes the folder", "mkdir mkdirSync"],
  [() => fs.promises, "makes the folder", "mkdir"],
  [() => fs, "removes", "rm rmSync rmdir rmdirSync unlink unlinkSync"],
  [() => fs.promises, "removes", "rm rmdir unlink"],
  [() => fs, "renames", "rename renameSync"],
  [() => fs.promises, "renames", "rename"],
  [() => child_process, "starts the program", "spawn spawnSync exec execSync execFile execFileSync fork"],
  [() => os, "reads the name of the machine", "hostname"],
  [() => globalThis, "fetches", "fetch"],
];

const watchers = new Map<string, Watch>();
let open = 0;
let unwrap: () => void = () => undefined;

/** What the runs of a scenario did between their steps. A name in allow is not told. */
export class Watch {
  readonly seen = new Set<string>();
  private readonly runs: string[] = [];

  constructor(private readonly allow: readonly string[] = []) {
    if (open++ === 0) unwrap = wrap();
  }

  run(id: string): void {
    this.runs.push(id);
    watchers.set(id, this);
  }

  saw(what: string, name: string): void {
    if (!this.allow.includes(name)) this.seen.add(name === "" ? what : `${what} ${name}`);
  }

  close(): void {
    for (const id of this.runs) watchers.delete(id);
    if (--open === 0) unwrap();
  }
}

function saw(what: string, name: string): void {
  const scope = scopes.getStore();
  if (scope && scope.step === undefined) watchers.get(scope.execution.grant.run_id)?.saw(what, name);
}

function nameOf(what: string, arg: unknown): string {
  if (what === "reads the name of the machine") return "";
  return arg instanceof Request ? arg.url : String(arg);
}

/** Wraps what is watched, and returns the function that undoes that. */
function wrap(): () => void {
  const undo: (() => void)[] = [];
  for (const [of, what, names] of calls) {
    const object = of() as Functions;
    for (const name of names.split(" ")) {
      const own = object[name];
      if (typeof own !== "function") continue;
      const apply = (f: Function, self: unknown, args: unknown[]) => {
        saw(what, nameOf(what, args[0]));
        return Reflect.apply(f, self, args) as unknown;
      };
      object[name] = new Proxy(own, { apply });
      undo.push(() => (object[name] = own));
    }
  }
  const env = process.env;
  const read = (name: string | symbol) => {
    if (typeof name === "string" && !name.startsWith("NODE_")) saw("reads the environment variable", name);
  };
  process.env = new Proxy(env, {
    get: (t, name) => (read(name), t[name as string]),
    has: (t, name) => (read(name), name in t),
    set: (t, name, value: string) => ((t[name as string] = value), true),
  });
  undo.push(() => (process.env = env));
  syncBuiltinESMExports();
  return () => {
    for (const f of undo) f();
    syncBuiltinESMExports();
  };
}
