// The build of a program: a hash of its files.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const mostFiles = 2000;

/** Returns a hash of the program's files: those in the folder of the main script, and this package. */
export function defaultBuild(script = process.argv[1] ?? ""): string {
  const files = new Set<string>();
  for (const folder of new Set([folderOf(script), dirname(fileURLToPath(import.meta.url))])) if (folder) collect(folder, files);
  const hash = createHash("sha256");
  for (const file of [...files].sort()) {
    try {
      hash.update(`${basename(file)}\0`).update(createHash("sha256").update(readFileSync(file)).digest());
    } catch {
      // it was removed meanwhile
    }
  }
  return `node-${hash.digest("hex").slice(0, 16)}`;
}

function folderOf(script: string): string {
  try {
    return statSync(script).isFile() ? dirname(script) : "";
  } catch {
    return "";
  }
}

function collect(folder: string, files: Set<string>): void {
  let found;
  try {
    found = readdirSync(folder, { withFileTypes: true });
  } catch {
    return;
  }
  for (const f of found) {
    if (files.size >= mostFiles || f.name.startsWith(".") || f.name === "node_modules") continue;
    if (f.isDirectory()) collect(join(folder, f.name), files);
    else if (/\.([cm]?[jt]s|json)$/.test(f.name)) files.add(join(folder, f.name));
  }
}
