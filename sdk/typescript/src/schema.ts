// Types that are known while the program runs: JSON Schema, or anything with the Standard Schema
// interface. They check what comes from the journal and from outside, as Go's types do.

import { isObject, setMember, type Json } from "./json.js";

/** The part of the Standard Schema interface (standardschema.dev) that is used. */
export interface StandardSchema<T = unknown> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => StandardResult<T> | Promise<StandardResult<T>>;
  };
}

type StandardResult<T> = { value: T; issues?: undefined } | { issues: ReadonlyArray<{ message: string; path?: unknown }> };

/**
 * A JSON Schema. Known words: type, properties, required, additionalProperties, items, minItems, maxItems, enum and
 * const.
 */
export type JsonSchema = { readonly [word: string]: unknown };

/** A schema of either sort. */
export type Schema<T = unknown> = StandardSchema<T> | JsonSchema;

/** Thrown by read if a value does not fit. */
export class Misfit extends Error {}

/** Reads a value by a schema: returns it without fields that the schema does not have. */
export async function read(schema: Schema | undefined, v: unknown): Promise<unknown> {
  if (schema === undefined) return v;
  if (isStandard(schema)) {
    const got = await schema["~standard"].validate(v);
    if (got.issues !== undefined) throw new Misfit(got.issues.map((i) => i.message).join("; "));
    return got.value;
  }
  return readBy(schema, v, "");
}

function isStandard(schema: Schema): schema is StandardSchema {
  return "~standard" in schema;
}

function typeOf(v: unknown): string {
  if (v === null) return "null";
  if (Array.isArray(v)) return "array";
  if (v instanceof Uint8Array) return "bytes";
  if (typeof v === "number" && Number.isInteger(v)) return "integer";
  return typeof v === "bigint" ? "integer" : typeof v;
}

function readBy(schema: JsonSchema, v: unknown, path: string): unknown {
  const at = path === "" ? "the value" : path;
  const type = typeOf(v);
  if (schema.type !== undefined) {
    const types = (Array.isArray(schema.type) ? schema.type : [schema.type]) as string[];
    const bytes = schema.contentEncoding === "base64" && types.includes("string");
    if (bytes && type === "string") throw new Misfit(`${at} is a text, and the schema asks for bytes`);
    if (!types.includes(type) && !(type === "integer" && types.includes("number")) && !(type === "bytes" && bytes))
      throw new Misfit(`${at} is of the type ${type}, and the schema asks for ${types.join(" or ")}`);
  }
  const same = (x: unknown) => JSON.stringify(x) === JSON.stringify(v);
  if (Array.isArray(schema.enum) && !schema.enum.some(same)) throw new Misfit(`${at} is none of ${JSON.stringify(schema.enum)}`);
  if ("const" in schema && !same(schema.const)) throw new Misfit(`${at} is not ${JSON.stringify(schema.const)}`);
  if (Array.isArray(v)) {
    const { minItems = 0, maxItems = Infinity } = schema as { minItems?: number; maxItems?: number };
    if (v.length < minItems || v.length > maxItems)
      throw new Misfit(`${at} has ${v.length} elements, and the schema asks for ${minItems} to ${maxItems}`);
  }
  if (Array.isArray(v) && isObject(schema.items)) return v.map((x, i) => readBy(schema.items as JsonSchema, x, `${path}/${i}`));
  if (!isObject(v) || v instanceof Uint8Array) return v;
  for (const name of (schema.required ?? []) as string[]) if (!Object.hasOwn(v, name)) throw new Misfit(`${at} lacks the field ${name}`);
  const more = schema.additionalProperties;
  if (!isObject(schema.properties) && more === undefined) return v;
  const fields = (schema.properties ?? {}) as Record<string, JsonSchema>;
  const out = {};
  for (const [name, x] of Object.entries(v)) {
    if (Object.hasOwn(fields, name)) setMember(out, name, readBy(fields[name] as JsonSchema, x, `${path}/${name}`));
    else if (more === true) setMember(out, name, x);
    else if (isObject(more)) setMember(out, name, readBy(more, x, `${path}/${name}`));
  }
  return out;
}

/** Returns the fields that a value has and what was read of it lacks, as the journal names them. */
export function fieldsLost(from: Json, got: unknown): string[] {
  const found = new Set<string>();
  compare(from, got, "", found);
  const all = [...found].sort();
  return all.length > 64 ? [...all.slice(0, 63), "*"] : all;
}

function compare(from: unknown, got: unknown, path: string, found: Set<string>): void {
  const inner = (name: string) => (path === "" ? name : `${path}/${name}`);
  if (Array.isArray(from) && Array.isArray(got)) {
    from.forEach((x, i) => compare(x, got[i], inner("*"), found));
  } else if (isObject(from) && isObject(got)) {
    for (const [name, x] of Object.entries(from)) {
      if (x === null) continue;
      if (!Object.hasOwn(got, name)) found.add(inner(name));
      else compare(x, got[name], inner(name), found);
    }
  }
}

/** Tells whether a value has an object in it. */
export function hasObjects(v: unknown): boolean {
  if (Array.isArray(v)) return v.some(hasObjects);
  return isObject(v);
}
