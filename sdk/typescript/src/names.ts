// Names, keys and durations, as docs/journal.md has them.

/** A span of time: a number of milliseconds, or a text such as "90s", "1h30m" or "2d". */
export type Duration = number | string;

const legal = /^[\p{L}\p{N}][\p{L}\p{N}_.:/#@+\- ]*$/u;

/** Says what is wrong with a name that the code gives, or returns nothing. */
export function nameFault(name: unknown, most = 170): string | undefined {
  if (typeof name !== "string") return `the name is a ${typeof name}; it has to be a text`;
  if (name === "") return "the name is empty";
  const size = Buffer.byteLength(name);
  if (size > most) return `the name has ${size} bytes; at most ${most} are allowed`;
  if (/#\d+\/\//.test(name))
    return `the name ${JSON.stringify(name)} has "#", digits and "//" in it, as the key of a branch has`;
  if (!legal.test(name) || name.endsWith(" ") || name.includes(".."))
    return `the name ${JSON.stringify(name)} may have letters, digits, _ . : / # @ + - and inner spaces, begins with a letter or digit, and has no ".."`;
  if (/#\d+\/\//.test(name)) return `the name ${JSON.stringify(name)} has "#", digits and "//" in a row, which is the end of a branch and in no name`;
  return undefined;
}

/** Says what is wrong with the name of a version. */
export function versionFault(name: unknown): string | undefined {
  return typeof name === "string" && name.startsWith("_") ? nameFault(`x${name.slice(1)}`, 200) : nameFault(name, 200);
}

/** Returns the branch of a key: the part up to its last "#", digits and "//". */
export function branchOf(key: string): string {
  const bare = key.startsWith("_") ? key.slice(key.indexOf(":") + 1) : key;
  return /^(.*#\d+\/\/)/s.exec(bare)?.[1] ?? "";
}

/** Returns the part of a key behind its branch, without a prefix of the library. */
export function localOf(key: string): string {
  const bare = key.startsWith("_") ? key.slice(key.indexOf(":") + 1) : key;
  return bare.slice(branchOf(key).length);
}

/** Returns the id of the first wait of a future: without the number of a repetition. */
export function firstWait(id: string): string {
  return id.replace(/(#\d+)\.\d+$/, "$1");
}

const units: Record<string, number> = { us: 1, "µs": 1, ms: 1e3, s: 1e6, m: 6e7, h: 36e8, d: 864e8 };

/** Returns the microseconds of a duration. It throws a RangeError if the text is none. */
export function micros(d: Duration): number {
  if (typeof d === "number") {
    if (!Number.isFinite(d)) throw new RangeError(`${d} is no duration`);
    return Math.round(d * 1000);
  }
  const text = typeof d === "string" && d.startsWith("-") ? d.slice(1) : d;
  if (typeof d !== "string" || !/^(\d+(\.\d+)?(us|µs|ms|s|m|h|d))+$/.test(text))
    throw new RangeError(`${JSON.stringify(d)} is no duration; write 1500 (milliseconds), "90s" or "1h30m"`);
  let sum = 0;
  for (const [, n, , unit] of text.matchAll(/(\d+(\.\d+)?)(us|µs|ms|s|m|h|d)/g)) sum += Number(n) * units[unit as string]!;
  return Math.round(d.startsWith("-") ? -sum : sum);
}

/** Writes microseconds as the server reads a duration, such as 1h0m0s. */
export function durationText(us: number): string {
  if (us <= 0) return "0s";
  if (us < 1000) return `${us}µs`;
  if (us < 1e6) return `${us / 1000}ms`;
  const h = Math.floor(us / 36e8);
  const m = Math.floor((us % 36e8) / 6e7);
  const s = Math.floor((us % 6e7) / 1e6);
  const rest = String(us % 1e6).padStart(6, "0").replace(/0+$/, "");
  const seconds = `${s}${rest && `.${rest}`}s`;
  if (h > 0) return `${h}h${m}m${seconds}`;
  return m > 0 ? `${m}m${seconds}` : seconds;
}
